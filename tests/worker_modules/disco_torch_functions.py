"""Functions and a class that use the process group of torch."""

from __future__ import annotations

import os
import signal

import disco_server


@disco_server.register_func("torch_test.group")
def group():
    """What torch says of the group, and a sum over it."""
    import torch
    import torch.distributed as dist

    worker = disco_server.current_worker()
    made = worker.torch_group()
    assert made is worker.torch_group()
    total = torch.full((3,), float(worker.worker_id + 1))
    dist.all_reduce(total, group=made)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    told = [os.environ[name] for name in names]
    return [made.rank(), made.size(), dist.get_backend(), *told, total.tolist()]


@disco_server.register_func("torch_test.anew")
def anew():
    """Ends the group, makes another, and returns how many ranks it has."""
    import torch
    import torch.distributed as dist

    worker = disco_server.current_worker()
    worker.torch_group()
    dist.destroy_process_group()
    total = torch.ones(1)
    dist.all_reduce(total, group=worker.torch_group())
    return int(total)


@disco_server.register_func("torch_test.by_environment")
def by_environment():
    """A group as a script of torchrun makes one, from the environment alone."""
    import torch
    import torch.distributed as dist

    from disco_server.rank.torch_group import torch_environment

    worker = disco_server.current_worker()
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.update(torch_environment(worker))
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)


@disco_server.register_func("torch_test.sum", torch=True)
def summed(value):
    """A sum by torch, whose group is there before."""
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(value))
    dist.all_reduce(total)
    return float(total)


@disco_server.register_func("torch_test.backends")
def backends():
    """Wants another backend on worker 1."""
    worker = disco_server.current_worker()
    worker.torch_group("cpu:gloo" if worker.worker_id == 1 else "gloo")


@disco_server.register_func("torch_test.leave", torch=True)
def leave(who):
    """One worker raises, and the others wait for it in torch."""
    import torch
    import torch.distributed as dist

    if disco_server.current_worker().worker_id == who:
        raise ValueError("this worker leaves")
    dist.all_reduce(torch.ones(3))


@disco_server.register_func("torch_test.leave_work", torch=True)
def leave_work(who):
    """One worker raises, and the others wait for it in the work of a collective."""
    import torch
    import torch.distributed as dist

    if disco_server.current_worker().worker_id == who:
        raise ValueError("this worker leaves")
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()


@disco_server.register_func("torch_test.skip", torch=True)
def skip(who):
    """One worker goes past, and the others wait for it in torch."""
    import torch
    import torch.distributed as dist

    if disco_server.current_worker().worker_id != who:
        dist.all_reduce(torch.ones(3))


def network():
    """A small network, the same wherever it is made."""
    import torch

    torch.manual_seed(3)
    torch.set_num_threads(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def step_once(model, inputs, targets, killed=-1):
    """A step of gradient descent; returns the loss."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    if killed >= 0 and disco_server.current_worker().worker_id == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@disco_server.register_class("torch_test.Parallel", torch=True)
class Parallel:
    """The network, trained by DistributedDataParallel."""

    def __init__(self):
        import torch

        self.inner = network()
        self.model = torch.nn.parallel.DistributedDataParallel(self.inner)

    def step(self, inputs, targets, killed=-1):
        """A step on this worker's part of the batch."""
        import torch

        return step_once(self.model, torch.as_tensor(inputs), torch.as_tensor(targets), killed)

    def weights(self):
        """All weights in one array."""
        import torch

        return torch.nn.utils.parameters_to_vector(self.inner.parameters()).detach()


def listening():
    """The addresses and ports where this process listens."""
    import psutil

    found = psutil.Process().net_connections("inet")
    return {tuple(each.laddr) for each in found if each.status == psutil.CONN_LISTEN}


@disco_server.register_func("torch_test.where")
def where():
    """A sum of ones, where torch meets, this rank's place, and where its process listens for it."""
    import torch
    import torch.distributed as dist

    worker = disco_server.current_worker()
    worker.barrier()  # after which MPI listens
    before = listening()
    total = torch.ones(1)
    dist.all_reduce(total, group=worker.torch_group())
    added = [host for host, _ in listening() - before]
    return [int(total), os.environ["MASTER_ADDR"], os.environ["LOCAL_RANK"], added]
