"""Time of work that was recorded as a CUDA graph."""
import torch


def recorded(work):
    """A graph of work(), which ran once before."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        work()
        side.synchronize()
        with torch.cuda.graph(graph, stream=side):
            work()
    return graph


def microseconds(graph, parts, replays):
    """Of one of its equal parts, the least of eight times."""
    found = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return round(1e3 * min(found) / replays / parts, 2)
