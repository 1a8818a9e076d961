from __future__ import annotations

import pytest

from tfdist.cluster import split_address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("job-worker-0.ns.svc.cluster.local:2222", ("job-worker-0.ns.svc.cluster.local", 2222)),
        ("[::1]:2222", ("::1", 2222)),
        ("[fe80::1%eth0]:2222", ("fe80::1%eth0", 2222)),
    ],
)
def test_splits(address, expected):
    assert split_address(address) == expected


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("localhost", "add the port"),
        ("[::1]", "add the port"),
        ("", "add the port"),
        ("localhost:", "choose a port from 1 to 65535"),
        ("localhost:0", "choose a port from 1 to 65535"),
        ("localhost:65536", "choose a port from 1 to 65535"),
        ("localhost:99999999999", "choose a port from 1 to 65535"),
        ("localhost:-1", "choose a port from 1 to 65535"),
        ("localhost:http", "choose a port from 1 to 65535"),
        ("localhost:٣", "choose a port from 1 to 65535"),
        (":2222", "write the host before the colon"),
        ("[]:2222", "write the host before the colon"),
        ("grpc://localhost:2222", "drop the scheme 'grpc://'"),
        ("http://localhost", "drop the scheme 'http://'"),
        ("::1:2222", "write an IPv6 host in brackets, as in [::1]:2222"),
        ("local host:1", "write the host and the port only, with nothing around them"),
        (" localhost:1", "write the host and the port only, with nothing around them"),
        ("localhost:1/path", "write the host and the port only, with nothing around them"),
        ("a:1,b:1", "write the host and the port only, with nothing around them"),
        (2222, "write it as a string"),
        (None, "write it as a string"),
    ],
)
def test_refuses(address, advice):
    with pytest.raises(ValueError) as caught:
        split_address(address, field="cluster.ps[3]")
    assert str(caught.value) == f"expected cluster.ps[3] to be an address host:port, received {address!r}; {advice}."
