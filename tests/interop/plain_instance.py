"""A bot instance that follows the plain protocol with kazoo, as others write it: it knows nothing of fencegate's elector.

Candidate, lowest number, predecessor, /active. While it leads it sends to the gateway with its token, one message after the
other. It never checks before it sends: a frozen one that wakes is a zombie, and the gateway has to stop it.

    plain_instance.py CONNECT ACCOUNT INSTANCE GATEWAY SESSION_TIMEOUT
"""

import http.client
import json
import signal
import sys
import threading
import time

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import NodeExistsError, NoNodeError

connect, account, instance, gateway, timeout = sys.argv[1:]
members = f"/wx-accounts/{account}/members"
active = f"/wx-accounts/{account}/active"
woken = threading.Event()
leaving = threading.Event()
state = {"role": "INIT", "seq": None, "session": None, "epoch": None}


def say(role, **more):
    state["role"] = role
    print(json.dumps({"at": time.time(), "role": role, **more}), flush=True)


def number(name):
    return int(name.rsplit("-", 1)[1])


def turn(zk):
    """One look, and what follows from it."""
    session = zk.client_id[0]
    if state["session"] != session:
        state.update(session=session, seq=None)
    names = sorted((name for name in zk.get_children(members) if name.startswith("m-")), key=number)
    if state["seq"] is None:
        own = [name for name in names if zk.exists(f"{members}/{name}").ephemeralOwner == session]
        path = f"{members}/{own[0]}" if own else zk.create(f"{members}/m-", instance.encode(), ephemeral=True, sequence=True)
        state["seq"] = number(path)
        return True
    numbers = [number(name) for name in names]
    if state["seq"] not in numbers:
        state["seq"] = None
        say("SUSPEND", why="candidate gone")
        return True
    found = zk.exists(active, watch=lambda _: woken.set())
    if found is not None:
        if found.ephemeralOwner == session:
            if state["role"] != "LEADER":
                state["epoch"] = found.czxid
                say("LEADER", seq=state["seq"], epoch=found.czxid)
        elif state["role"] == "LEADER":
            # It lost /active: never the same candidate again.
            zk.delete(f"{members}/m-{state['seq']:010d}")
            state["seq"] = None
            say("SUSPEND", why="deposed")
            return True
        else:
            say("WAITING") if state["role"] != "WAITING" else None
        return False
    before = [other for other in numbers if other < state["seq"]]
    if before:
        predecessor = f"{members}/m-{max(before):010d}"
        return zk.exists(predecessor, watch=lambda _: woken.set()) is None
    data = {"seq": state["seq"], "instanceId": instance, "sessionId": session, "activeSince": int(time.time() * 1000)}
    try:
        zk.create(active, json.dumps(data).encode(), ephemeral=True)
    except NodeExistsError:
        pass
    return True


def send(connection):
    headers = {"X-Fencing-Seq": str(state["seq"]), "X-Fencing-Session": str(state["session"])}
    connection.request("POST", f"/wx/{account}/send", body=f"{instance}".encode(), headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def sending():
    connection = http.client.HTTPConnection(gateway, timeout=30)
    while not leaving.is_set():
        if state["role"] != "LEADER":
            time.sleep(0.005)
            continue
        try:
            if send(connection) == 409:
                time.sleep(0.02)
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.02)


def changed(new):
    if new != KazooState.CONNECTED:
        say("SUSPEND", why=str(new))
    woken.set()


def main():
    signal.signal(signal.SIGTERM, lambda *_: (leaving.set(), woken.set()))
    zk = KazooClient(hosts=connect, timeout=float(timeout), connection_retry={"max_tries": -1, "max_delay": 0.5})
    zk.add_listener(changed)
    zk.start(timeout=30)
    zk.ensure_path(members)
    threading.Thread(target=sending, daemon=True).start()
    while not leaving.is_set():
        try:
            again = zk.connected and turn(zk)
        except NoNodeError:
            again = True
        except Exception as why:  # the connection, in any of kazoo's ways
            print(json.dumps({"trouble": repr(why)}), flush=True)
            again = False
        if not again:
            # A missed watch must not stop it for ever.
            woken.wait(0.5)
            woken.clear()
    state["role"] = "INIT"
    zk.stop()
    zk.close()


main()
