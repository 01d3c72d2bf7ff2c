"""A simulator of distributed training jobs with faults, whose truth is known because it is simulated again without them.

Written from the timeline format's side: it knows how a job behaves and what a runtime writes down, and nothing of how a trace is
analysed.

    clock      a discrete-event clock, and processes that wait on it
    noise      random draws that stay the same when a fault is taken away
    jobs       what a job is: ranks, layers, loader, network; random ones
    plan       a job's work by rank and step, noise included
    faults     what can be wrong, as changes of a job and of its plan; kinds in fault_kinds
    network    negotiation, fusion, executors, collectives
    training   the training thread and the loader of a rank
    recording  what a run leaves behind
    cases      a job, its faults and the truth
    host_load  what the runtime samples of the hosts
    shards, horovod, kineto   write a recording
"""
