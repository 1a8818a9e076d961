"""Python processes of tests that begin with TensorFlow imported, which saves the 3 to 4 s of its import.

WarmPopen is a subprocess.Popen whose process is forked from a server. The server has imported TensorFlow and Keras, and
has done nothing else. Arguments, environment variables, folder, files and session of the process are those that the
test asks for. Tests of what an import does start their processes with subprocess.Popen.
"""
