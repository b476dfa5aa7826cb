"""Disposable processes for work that may go wrong: a bomb costs one of them and one clear error, never the caller.

    caller ── Pool.run(method, arguments, body) ──> Worker ══ Channel ══ child: hosted object .method(arguments, body)
                 warm spares, deadline, memory limit      frames, Arrow, a file's descriptor

The child hosts one object, made by a function that is named (`Host`); a call names one of its methods. Arguments and
answers are JSON; rows travel as bytes or Arrow streams, one way or the other, as fast as the other side takes them.
"""

from headwater.workers.channel import Channel
from headwater.workers.pool import Host, Pool, WorkerLimits

__all__ = ["Channel", "Host", "Pool", "WorkerLimits"]
