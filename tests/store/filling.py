"""Puts a run document's content into a store, as a run would."""

from __future__ import annotations


def fill(store, document, name=None):
    """A run with the document's targets, nodes, costs, decisions and rows; returns its id."""
    run = store.create_run(
        name,
        options=document["options"],
        device=document["device"],
        versions=document["versions"],
        workload=document["workload"],
    )
    for target in document["targets"]:
        store.add_target(run, target["index"], target)
    for node, cost in zip(document["nodes"], document["costs"], strict=True):
        put_node(store, run, node, document["details"][node["id"]], cost)
    for decision in document["decisions"]:
        store.set_decision(run, decision["target"], decision)
    store.set_whole(run, document["whole"])
    keys = ("state", "state_reason", "progress", "fidelity", "recommendation", "counters")
    store.update_run(run, **{k: document[k] for k in keys})
    return run


def put_node(store, run, node, details, cost=None):
    """One node of a document, taken apart into candidate and evaluation."""
    parts = ("log", "errors", "timings", "resources", "mismatches", "seconds", "bandwidth_gbs")
    evaluation = {k: details[k] for k in (*parts, "roofline_share", "repeatable")}
    evaluation |= {"verdict": node["verdict"], "reason": node["reason"]}
    candidate = {k: node[k] for k in ("title", "language", "origin")}
    candidate |= {"source": details["source"], "plan": details["plan"], "digest": node["id"]}
    booked = cost and {k: cost[k] for k in ("calls", "tokens_in", "tokens_out", "usd", "seconds")}
    store.add_node(
        run,
        node["id"],
        target=node["target"],
        parent=node["parent"],
        action=node["action"],
        candidate=candidate,
        evaluation=evaluation,
        seconds=node["seconds"],
        visits=node["visits"],
        value=node["value"],
        cost=booked,
    )
