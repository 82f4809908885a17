"""What Windows' Python does not have of the modules that Linux' has. macOS lacks some of it, too."""

from __future__ import annotations

_MODULES = "crypt fcntl grp nis posix pty pwd readline resource spwd syslog termios tty"
_OS = """
O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC P_PID WEXITED WNOHANG WNOWAIT chown chroot
copy_file_range fchdir fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid getpgrp
getpriority getsid getuid initgroups killpg lchown memfd_create mkfifo mknod nice openpty pipe2 posix_fadvise
posix_fallocate posix_spawn pread preadv pwrite pwritev sched_getaffinity sched_setaffinity sendfile set_blocking
setegid seteuid setgid setpgid setpriority setsid setuid statvfs sync sysconf uname unshare wait wait3 wait4 waitid
"""
_SIGNAL = """
ITIMER_PROF ITIMER_REAL ITIMER_VIRTUAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP
SIGUSR1 SIGUSR2 SIGXCPU SIGXFSZ alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending
sigwait
"""
_TIME = "CLOCK_REALTIME_COARSE clock_gettime clock_gettime_ns tzset"

MODULES = frozenset(_MODULES.split())
MISSING = {
    "os": frozenset(_OS.split()),
    "signal": frozenset(_SIGNAL.split()),
    "select": frozenset(("epoll", "kqueue", "poll")),
    "time": frozenset(_TIME.split()),
}
"""Module -> the names that it lacks."""
