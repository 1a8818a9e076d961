from __future__ import annotations

import pytest

from tfdist.cluster.address import join_address, split_address


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
def test_an_address_is_split_into_host_and_port_and_joined_again(address, expected):
    assert split_address(address) == expected
    assert join_address(*expected) == address


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("localhost", "add the port"),
        ("[::1]", "add the port"),
        ("", "add the port"),
        ("localhost:", "write a port from 1 to 65535"),
        ("localhost:0", "write a port from 1 to 65535"),
        ("localhost:65536", "write a port from 1 to 65535"),
        ("localhost:99999999999", "write a port from 1 to 65535"),
        ("localhost:-1", "write a port from 1 to 65535"),
        ("localhost:http", "write a port from 1 to 65535"),
        ("localhost:٣", "write a port from 1 to 65535"),
        (":2222", "write the host before the colon"),
        ("[]:2222", "write the host before the colon"),
        ("grpc://localhost:2222", "drop the scheme 'grpc://'"),
        ("http://localhost", "drop the scheme 'http://'"),
        ("::1:2222", "write an IPv6 host in brackets, as in [::1]:2222"),
        ("local host:1", "write only the host and the port"),
        (" localhost:1", "write only the host and the port"),
        ("localhost:1/path", "write only the host and the port"),
        ("a:1,b:1", "write only the host and the port"),
        (2222, "write it as a string"),
        (None, "write it as a string"),
    ],
)
def test_a_text_that_is_not_an_address_is_refused(address, advice):
    with pytest.raises(ValueError) as caught:
        split_address(address, field="cluster.ps[3]")
    assert str(caught.value) == f"expected cluster.ps[3] to be an address host:port, received {address!r}; {advice}."
