"""Flags of `tl-run` that set no variable of the runtime: what moves the data, what is printed, other hosts, Nsight, elastic."""

import argparse


def add_flags_of_transport(parser: argparse.ArgumentParser) -> None:
    """What moves the data, and over which network."""
    group = parser.add_argument_group("data transport")
    controllers = group.add_mutually_exclusive_group()
    controllers.add_argument("--gloo", action="store_true", help="start the ranks without MPI (default)")
    controllers.add_argument("--mpi", action="store_true", help="start the ranks with mpirun, and move data with MPI")
    controllers.add_argument("--jsrun", action="store_true", help="refused: jsrun is not supported")
    group.add_argument(
        "--network-interfaces",
        "--network-interface",
        action="append",
        metavar="NAMES",
        help="network interfaces for the connections of the ranks, separated by commas or repeated; Gloo uses the first",
    )


def add_flags_of_output(parser: argparse.ArgumentParser) -> None:
    """What is printed and logged."""
    add = parser.add_argument_group("output and log").add_argument
    add("--output-filename", metavar="DIR", help="also write the output of each rank to DIR/rank.<r>/stdout and stderr")
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        dest="prefix_timestamp",
        help="prefix each line of output with the time",
    )
    add("--verbose", action="store_true", help="print what is started, and with which settings")
    add(
        "--log-with-timestamp",
        action="store_const",
        const="0",
        dest="hide_time",
        help="include times in the runtime's log",
    )
    add(
        "--log-without-timestamp",
        action="store_const",
        const="1",
        dest="hide_time",
        help="omit times from the runtime's log",
    )
    add(
        "--stall-check",
        action="store_const",
        const="0",
        dest="stall_check_disable",
        help="warn about stalled tensors (default)",
    )
    add("--no-stall-check", action="store_const", const="1", dest="stall_check_disable", help="do not warn")


def add_flags_of_hosts(parser: argparse.ArgumentParser) -> None:
    """Flags for other hosts, MPI and elastic training."""
    hidden = argparse.SUPPRESS
    remote = parser.add_argument_group("other hosts (over ssh; TLKIT_REMOTE_SHELL sets another command)")
    remote.add_argument("-p", "--ssh-port", type=int, metavar="N", help="ssh port")
    remote.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    remote.add_argument("--mpi-args", metavar="TEXT", help="additional arguments for mpirun")
    remote.add_argument("--binding-args", metavar="TEXT", help="mpirun arguments that replace --bind-to none")
    nsys = parser.add_argument_group("Nsight Systems")
    nsys.add_argument("--nsys", action="store_true", help="run every rank under nsys, with one report per rank")
    nsys.add_argument(
        "--nsys-output",
        metavar="NAME",
        default="nsys",
        help="name prefix of the reports (default nsys: nsys.rank0.nsys-rep)",
    )
    nsys.add_argument("--nsys-steps", metavar="A:B", help="capture only steps A to B-1")
    nsys.add_argument("--nsys-args", metavar="TEXT", default="", help="additional arguments for nsys profile")
    elastic = parser.add_argument_group("elastic training (with --min-np or --host-discovery-script)")
    elastic.add_argument(
        "--min-np", "--min-num-proc", type=int, metavar="N", help="minimum number of ranks to continue with"
    )
    elastic.add_argument("--max-np", "--max-num-proc", type=int, metavar="N", help="maximum number of ranks to start")
    elastic.add_argument(
        "--host-discovery-script", metavar="FILE", help="script that prints one `host:slots` per line; run every second"
    )
    elastic.add_argument(
        "--slots-per-host",
        "--slots",
        type=int,
        metavar="N",
        help="slots of hosts that the script prints without a number",
    )
    elastic.add_argument(
        "--elastic-timeout", type=int, metavar="S", help="seconds to wait for enough ranks (default 600)"
    )
    elastic.add_argument("--reset-limit", type=int, metavar="N", help="end the job after this many resets")
    elastic.add_argument(
        "--blacklist-cooldown-range",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="after a rank has died, do not use its host for MIN seconds, doubling each time up to MAX, if enough ranks "
        "remain elsewhere (default: only its slot, 10 120)",
    )
    for flag in ("--disable-cache", "--tcp"):
        parser.add_argument(flag, action="store_true", help=hidden)
    parser.add_argument("--log-hide-timestamp", action="store_const", const="1", dest="hide_time", help=hidden)
    parser.add_argument("--no-log-hide-timestamp", action="store_const", const="0", dest="hide_time", help=hidden)
