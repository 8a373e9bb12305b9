"""Two ranks of tensor parallelism on one card, for machines that have no second one: a plugin of both engines (ONE_CARD=1 with GPUS=2 of serve.py and
serve_sglang.py). Each rank holds its half of the heads, weights, pages and windows, as on two cards. NCCL refuses ranks that share a card, so they add
by gloo, through the host's memory and without graphs. That is slow, so nothing here may be timed."""
import os
import pathlib
import sys
import tempfile


def prepare():
    """Makes the plugin known to the processes that an engine starts from here."""
    folder = pathlib.Path(tempfile.mkdtemp())
    here = pathlib.Path(__file__).resolve().parent
    sys.path.insert(0, str(here.parents[1] / "python"))
    from entry_points import write_entry_points
    write_entry_points(folder, "one-card", "1", "[vllm.general_plugins]\none_card = one_card:vllm\n\n[sglang.srt.plugins]\none_card = one_card:sglang\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(folder), str(here), os.environ.get("PYTHONPATH", "")) if p)
    os.environ.update(VLLM_DISABLE_PYNCCL="1", EAGER="1", ONE_CARD="made")  # not again in those processes
    sys.path.insert(0, str(folder))


def vllm():
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import Worker
    type(current_platform).dist_backend = "gloo"
    start = Worker.init_device

    def on_the_card(worker):
        worker.local_rank = 0
        start(worker)
    Worker.init_device = on_the_card


def sglang():
    from sglang.srt import platforms
    from sglang.srt.distributed import parallel_state
    from sglang.srt.entrypoints import engine
    type(platforms.current_platform).get_torch_distributed_backend_str = lambda platform: "gloo"
    group, device_of = parallel_state.GroupCoordinator.__init__, engine.get_device

    def without_nccl(*given, **named):
        group(*given, **named | {"use_pynccl": False})

    class OneCard:
        """The configuration of devices, whose ranks lie one card apart."""
        gpu_id_step = 0

        def __getattr__(self, name):
            return getattr(device_of(), name)
    parallel_state.GroupCoordinator.__init__, engine.get_device = without_nccl, OneCard
