"""Opens a session with one worker, computes there, and compares: the release's test."""

import numpy as np

import disco_client

with disco_client.connect(num_workers=1, name="helm-test", timeout=60) as session:
    rows = session.broadcast(np.arange(6.0).reshape(2, 3))
    product = session.get_global_func("numpy.matmul")(rows, session.broadcast(np.ones((3, 1))))
    assert product.numpy().tolist() == [[3.0], [12.0]], product.numpy()
    print(f"computed on {session.workers[0].node}")
