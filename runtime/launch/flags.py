"""Flags of `tl-run` that set no variable of the runtime: what moves the data, what is printed, other hosts, Nsight, elastic."""

import argparse


def add_flags_of_transport(parser: argparse.ArgumentParser) -> None:
    """What moves the data, and over which network."""
    group = parser.add_argument_group("what moves the data")
    controllers = group.add_mutually_exclusive_group()
    controllers.add_argument("--gloo", action="store_true", help="move data with Gloo (default)")
    controllers.add_argument("--mpi", action="store_true", help="start with mpirun, and move data with MPI")
    controllers.add_argument("--jsrun", action="store_true", help="refused: there is no support for jsrun")
    group.add_argument(
        "--network-interfaces",
        "--network-interface",
        action="append",
        metavar="NAMES",
        help="network interface for the ranks' connections; with commas or repeated, the first is for Gloo",
    )


def add_flags_of_output(parser: argparse.ArgumentParser) -> None:
    """What is printed and logged."""
    add = parser.add_argument_group("output and log").add_argument
    add("--output-filename", metavar="DIR", help="also write DIR/rank.<r>/stdout and stderr, as on the console")
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        dest="prefix_timestamp",
        help="begin each line of output with the time",
    )
    add("--verbose", action="store_true", help="say what is started and with which settings")
    add("--log-with-timestamp", action="store_const", const="0", dest="hide_time", help="times in the runtime's log")
    add(
        "--log-without-timestamp",
        action="store_const",
        const="1",
        dest="hide_time",
        help="no times in the runtime's log",
    )
    add(
        "--stall-check",
        action="store_const",
        const="0",
        dest="stall_check_disable",
        help="warn of stalled tensors (default)",
    )
    add("--no-stall-check", action="store_const", const="1", dest="stall_check_disable", help="do not")


def add_flags_of_hosts(parser: argparse.ArgumentParser) -> None:
    """Flags for other hosts, MPI and elastic training."""
    hidden = argparse.SUPPRESS
    remote = parser.add_argument_group("other hosts (reached by ssh; TLKIT_REMOTE_SHELL names another command)")
    remote.add_argument("-p", "--ssh-port", type=int, metavar="N", help="port of ssh")
    remote.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="key for ssh")
    remote.add_argument("--mpi-args", metavar="TEXT", help="more arguments for mpirun")
    remote.add_argument("--binding-args", metavar="TEXT", help="arguments for mpirun instead of --bind-to none")
    nsys = parser.add_argument_group("Nsight Systems")
    nsys.add_argument("--nsys", action="store_true", help="run every rank under nsys; one report a rank")
    nsys.add_argument("--nsys-output", metavar="NAME", default="nsys", help="name of the reports (nsys.rank0.nsys-rep)")
    nsys.add_argument("--nsys-steps", metavar="A:B", help="capture steps A to B-1 only")
    nsys.add_argument("--nsys-args", metavar="TEXT", default="", help="more arguments for nsys profile")
    elastic = parser.add_argument_group("elastic training (with --min-np or --host-discovery-script)")
    elastic.add_argument("--min-np", "--min-num-proc", type=int, metavar="N", help="go on with so few ranks")
    elastic.add_argument("--max-np", "--max-num-proc", type=int, metavar="N", help="start so many at most")
    elastic.add_argument(
        "--host-discovery-script", metavar="FILE", help="prints `host:slots` a line; asked every second"
    )
    elastic.add_argument("--slots-per-host", "--slots", type=int, metavar="N", help="for hosts printed without slots")
    elastic.add_argument("--elastic-timeout", type=int, metavar="S", help="wait so long for enough ranks (default 600)")
    elastic.add_argument("--reset-limit", type=int, metavar="N", help="end the job after so many changes")
    elastic.add_argument(
        "--blacklist-cooldown-range",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="leave the host of a rank that died for MIN seconds, doubling each time up to MAX, if enough ranks are left "
        "elsewhere (default: only its slot, 10 120)",
    )
    for flag in ("--disable-cache", "--tcp"):
        parser.add_argument(flag, action="store_true", help=hidden)
    parser.add_argument("--log-hide-timestamp", action="store_const", const="1", dest="hide_time", help=hidden)
    parser.add_argument("--no-log-hide-timestamp", action="store_const", const="0", dest="hide_time", help=hidden)
