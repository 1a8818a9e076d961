"""Prepares the strategies that a program makes with the constructors of tf.distribute, as create_strategy's are.

`adopt()` is one line at the top of a program. `tfdist launch --adopt` does the same for a program that is not changed.

Example:
    >>> from tfdist.adoption import adopt
    >>> adopt.__name__
    'adopt'
"""

from tfdist.adoption.adopt import adopt

__all__ = ["adopt"]
