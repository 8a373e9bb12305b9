"""Models shared out among processes in one folder."""
import fcntl


def work(models, job):
    """job(model) for each, skipping at first those that another process holds."""
    left = list(models)
    while left:
        model, lock = take(left)
        job(model)
        lock.close()
        left.remove(model)


def take(models):
    """The first model that no other process holds; where all are held, the first to be free."""
    for wait in (False, True):
        for model in models:
            lock = open(model.file("lock"), "w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                return model, lock
            except BlockingIOError:
                lock.close()
    raise AssertionError("a blocking lock was refused")
