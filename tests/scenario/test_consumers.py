"""The consumers' table, cell by cell: what each kind of event does to ledger, loyalty, receipts and access, and
what repeated, late, contradicting and differently written events do not do. Events go straight on the topics."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from confluent_kafka.schema_registry import SchemaRegistryError

from conftest import Services
from effects import CONSUMERS, Effects
from smtp_sink import SmtpSink
from stack import Stack
from topic import CONTACTS, PAYMENTS, Topic, in_partition, murmur2, partition_of, uuid7
from wait import until


@pytest.fixture(scope="module")
def sink() -> Iterator[SmtpSink]:
    with SmtpSink() as it:
        yield it


@pytest.fixture(scope="module")
def services(stack: Stack, sink: SmtpSink) -> Iterator[Services]:
    """All four consumers, for the whole module."""
    with Services(stack, sink) as it:
        it.start(*CONSUMERS)
        yield it


def booked(**against: int) -> dict[str, int]:
    """Balances of an order whose money came through one account."""
    return {"clearing:stripe:shop": sum(against.values())} | {k: -v for k, v in against.items()}


# --- The table of events and consumers

@dataclass(frozen=True)
class Cell:
    says: tuple[tuple[str, dict[str, Any]], ...]
    balances: dict[str, int]
    journals: tuple[int, ...]  # the sequences that moved something
    points: tuple[tuple[int, int], ...] = ()
    bought: bool = False  # one mail, one right


def cell(*says: tuple[str, dict[str, Any]] | str, **expect: Any) -> Cell:
    return Cell(tuple((s, {}) if isinstance(s, str) else s for s in says), **expect)


PAID = ("qualified", {"received": 1000})
TEN = ((1, 10),)
CELLS = {
    "pending": cell("pending", balances={}, journals=()),
    "pending, money held": cell(("pending", {"received": 400}), balances=booked(suspense=400), journals=(1,)),
    "failed": cell("pending", "failed", balances={}, journals=()),
    "failed, money held": cell(("failed", {"received": 200}), balances=booked(suspense=200), journals=(1,)),
    "canceled": cell("canceled", balances={}, journals=()),
    "canceled, money held": cell(("pending", {"received": 300}), "canceled", balances=booked(suspense=300),
                                 journals=(1,)),
    "adjusted, still short": cell(("pending", {"received": 300}), ("adjusted", {"received": 700}),
                                  balances=booked(suspense=700), journals=(1, 2)),
    "adjusted, paid twice": cell(PAID, ("adjusted", {"state": "paid", "received": 2000}),
                                 balances=booked(revenue=1000, customer_credit=1000), journals=(1, 2), points=TEN,
                                 bought=True),
    "review_required, short": cell(("review_required", {"received": 600}), balances=booked(suspense=600),
                                   journals=(1,)),
    "review_required, after paid": cell(PAID, "review_required", balances=booked(suspense=1000), journals=(1, 2),
                                        points=TEN, bought=True),
    "qualified": cell(PAID, balances=booked(revenue=1000), journals=(1,), points=TEN, bought=True),
    "qualified, over": cell(("qualified", {"received": 1750, "over": True}),
                            balances=booked(revenue=1000, customer_credit=750), journals=(1,), points=TEN,
                            bought=True),
    "qualified, back from review": cell(PAID, "review_required", "qualified", balances=booked(revenue=1000),
                                        journals=(1, 2, 3), points=TEN, bought=True),
    "refunded, a part": cell(PAID, ("refunded", {"refunded": 400}), balances=booked(revenue=600), journals=(1, 2),
                             points=(*TEN, (2, -4)), bought=True),
    "refunded, all": cell(PAID, ("refunded", {"refunded": 1000}), balances={}, journals=(1, 2),
                          points=(*TEN, (2, -10)), bought=True),
    "refunded, then less": cell(PAID, ("refunded", {"refunded": 400}), ("refunded", {"refunded": 100}),
                                balances=booked(revenue=900), journals=(1, 2, 3), points=(*TEN, (2, -4), (3, 3)),
                                bought=True),
    "refunded, the credit first": cell(("qualified", {"received": 1500}), ("refunded", {"refunded": 400}),
                                       balances=booked(revenue=1000, customer_credit=100), journals=(1, 2),
                                       points=TEN, bought=True),
    "refunded, never paid": cell(("review_required", {"received": 600}),
                                 ("refunded", {"state": "review", "refunded": 600}), balances={}, journals=(1, 2)),
    "reversed": cell(PAID, "reversed", balances=booked(suspense=1000), journals=(1, 2), points=(*TEN, (2, -10)),
                     bought=True),
    "due 0": cell(("qualified", {"due": 0}), balances={}, journals=(), bought=True),
    "due 0, money came": cell(("qualified", {"due": 0, "received": 500}), balances=booked(customer_credit=500),
                              journals=(1,), bought=True),
    "dispute and unknown words": cell(PAID, ("dispute_opened", {"state": "paid"}), ("celebrated", {"state": "paid"}),
                                      balances=booked(revenue=1000), journals=(1,), points=TEN, bought=True),
}


@pytest.fixture(scope="module")
def cells(services: Services, topic: Topic, effects: Effects) -> dict[str, str]:
    """Every cell played, every consumer through: the order of each."""
    run = uuid7()[-12:]
    orders = {}
    for i, (name, one) in enumerate(CELLS.items()):
        order = topic.order(f"{run}-{i}")
        for type, fields in one.says:
            order.says(type, **fields)
        orders[name] = order.id
    effects.wait_taken(topic.mark(run), *CONSUMERS)
    return orders


@pytest.mark.parametrize("name", CELLS)
def test_p27_ledger_moves_to_the_target(cells, effects, name: str) -> None:
    assert effects.balances(cells[name]) == CELLS[name].balances
    assert effects.journals(cells[name]) == list(CELLS[name].journals)


@pytest.mark.parametrize("name", CELLS)
def test_p25_loyalty_moves_to_the_target(cells, effects, name: str) -> None:
    assert effects.entries(cells[name]) == list(CELLS[name].points)


@pytest.mark.parametrize("name", CELLS)
def test_p26_receipts_asks_for_one_mail_on_qualified_alone(cells, effects, name: str) -> None:
    assert effects.mail(cells[name]) == (("not_wanted", 0, None) if CELLS[name].bought else None)


@pytest.mark.parametrize("name", CELLS)
def test_p22_access_grants_on_qualified_alone(cells, effects, name: str) -> None:
    order = cells[name]
    assert effects.rights(order) == ([(f"grant:{order}", f"c-{order}", "granted")] if CELLS[name].bought else [])


def test_p14_qualified_anew_is_a_new_generation_of_the_right_alone(services, topic, effects, tag) -> None:
    order = topic.order(tag)
    order.says("qualified", received=1000)
    order.says("reversed", received=0)
    anew = order.says("qualified", received=1000, qualification=2)
    effects.wait_taken([anew], *CONSUMERS)
    assert effects.rights(order.id) == [(f"grant:{tag}", f"c-{tag}", "revoked"),
                                        (f"grant.g2:{tag}", f"c-{tag}", "granted")]
    assert effects.entries(order.id) == [(1, 10), (2, -10), (3, 10)]
    assert effects.balances(order.id) == booked(revenue=1000)
    assert effects.mail(order.id) == ("not_wanted", 0, None)


def test_p14_a_late_copy_of_an_earlier_generation_does_not_come_to_life(services, topic, effects, tag) -> None:
    """And the living one, told again, does not end itself."""
    order = topic.order(tag)
    anew = order.says("qualified", received=1000, qualification=2, sequence=3)
    late = order.says("qualified", qualification=1, sequence=1)
    again = order.says("qualified", qualification=2, sequence=3)
    effects.wait_taken([anew, late, again], "access")
    assert effects.rights(order.id) == [(f"grant:{tag}", f"c-{tag}", "revoked"),
                                        (f"grant.g2:{tag}", f"c-{tag}", "granted")]


def test_p25_the_last_visit_moves_forward_only(services, stack, topic, effects, tag) -> None:
    for sequence in (5, 2):
        order = topic.order(f"{tag}-{sequence}", customer_id=tag)
        effects.wait_taken([order.says("qualified", received=1000, sequence=sequence)], "loyalty")
    [(points, second)] = stack.postgres.query(
        "SELECT points, extract(epoch FROM last_visit)::bigint %% 100 FROM loyalty.customer WHERE customer_id = %s", tag)
    assert (points, second) == (20, 5)


# --- Repeated, late, contradicting

def test_p19_a_late_copy_of_an_older_sequence_changes_nothing(services, topic, effects, tag) -> None:
    order = topic.order(tag)
    order.says("pending", received=300)
    last = order.says("qualified", received=1000, sequence=3)
    late = order.says("adjusted", received=700, sequence=2)
    later = order.says("qualified", received=2000, sequence=1)
    effects.wait_taken([last, later], *CONSUMERS)
    effects.wait_taken([late], "ledger", "loyalty")
    assert effects.balances(order.id) == booked(revenue=1000) and effects.journals(order.id) == [1, 3]
    assert effects.entries(order.id) == [(3, 10)]
    assert effects.mail(order.id) == ("not_wanted", 0, None) and len(effects.rights(order.id)) == 1


def conflicts(services: Services, *consumers: str) -> list[float]:
    return [services[c].metric("payonce_consumer_conflicts_total") for c in consumers]


def test_p27_the_same_sequence_again_is_the_same_or_a_conflict(services, topic, effects, tag) -> None:
    """Replays answer same, same but different, or new; another event id tells nothing."""
    ledger, loyalty = conflicts(services, "ledger", "loyalty")
    order = topic.order(tag)
    order.says("qualified", received=1000)
    effects.wait_taken([order.says("qualified", sequence=1)], "ledger", "loyalty")
    assert conflicts(services, "ledger", "loyalty") == [ledger, loyalty]
    effects.wait_taken([order.says("qualified", sequence=1, received=1200)], "ledger", "loyalty")
    until(lambda: conflicts(services, "ledger", "loyalty") == [ledger + 1, loyalty + 1], what="conflicts counted")
    assert effects.balances(tag) == booked(revenue=1000) and effects.entries(tag) == [(1, 10)]
    for consumer in ("ledger", "loyalty"):
        line = until(lambda c=consumer: [x for x in services[c].log_lines() if x["msg"].startswith("conflict")],
                     what="logged")[-1]
        assert (line["level"], line["order_id"]) == ("error", tag)


def test_p27_another_unit_is_refused_or_a_conflict_but_never_mixed(services, topic, effects, tag) -> None:
    """The ledger keeps an order in one unit."""
    [before] = conflicts(services, "ledger")
    order = topic.order(tag)
    order.says("qualified", received=1000)
    other = order.says("qualified", currency="EUR", sequence=1)
    effects.wait_taken([other], "ledger")
    until(lambda: conflicts(services, "ledger") == [before + 1], what="conflict counted")
    assert effects.journals(order.id) == [1] and effects.balances(order.id) == booked(revenue=1000)


def test_p22_another_recipient_is_a_model_conflict_and_never_overwrites(services, stack, topic, effects, tag) -> None:
    [before] = conflicts(services, "access")
    order = topic.order(tag)
    order.says("qualified", received=1000)
    order.says("qualified", customer_id="thief")
    again = order.says("qualified", customer_id="thief")
    effects.wait_taken([again], "access")
    until(lambda: conflicts(services, "access") == [before + 1], what="conflict counted")
    assert effects.rights(tag) == [(f"grant:{tag}", f"c-{tag}", "granted")]
    assert stack.postgres.query("SELECT customer_id FROM access.conflict WHERE order_id = %s", tag) == [("thief",)]


def test_p22_two_orders_of_one_customer_for_one_item_stay_two_rights(services, topic, effects, tag) -> None:
    orders = [topic.order(f"{tag}-{i}", customer_id=tag) for i in range(2)]
    effects.wait_taken([o.says("qualified", received=1000) for o in orders], "access")
    assert [effects.rights(o.id) for o in orders] == [[(f"grant:{o.id}", tag, "granted")] for o in orders]


def test_p26_a_mail_that_says_another_thing_is_a_conflict(services, topic, effects, tag) -> None:
    [before] = conflicts(services, "receipts")
    order = topic.order(tag)
    order.says("qualified", received=1000)
    effects.wait_taken([order.says("qualified", due=900)], "receipts")
    until(lambda: conflicts(services, "receipts") == [before + 1], what="conflict counted")
    assert effects.mail(tag) == ("not_wanted", 0, None)


def test_p19_a_known_event_id_is_dropped_before_anybody_looks_at_it(services, topic, effects, tag) -> None:
    """The first net alone: no business key would stop the next sequence."""
    before = {c: services[c].metric("payonce_consumer_duplicates_total") for c in CONSUMERS}
    order = topic.order(tag)
    first = order.says("qualified", received=1000)
    order.says("qualified", received=2000, customer_id="thief", due=900, event_id=first["event_id"])
    effects.wait_taken(topic.mark(tag), *CONSUMERS)
    assert effects.balances(tag) == booked(revenue=1000) and effects.entries(tag) == [(1, 10)]
    for consumer in CONSUMERS:
        until(lambda c=consumer: services[c].metric("payonce_consumer_duplicates_total") == before[c] + 1, what="counted")


def test_p7_two_events_of_one_second_in_both_orders_end_the_same(services, topic, effects, tag) -> None:
    """FAULTS 22: the position of the higher sequence wins, whichever comes first."""
    for name, turned in (("a", False), ("b", True)):
        order = topic.order(f"{tag}-{name}")
        paid = order.event("qualified", received=1000)
        refunded = order.event("refunded", refunded=250, occurred_at=paid["occurred_at"])
        for event in (refunded, paid) if turned else (paid, refunded):
            topic.send(event)
        effects.wait_taken([paid, refunded], "ledger", "loyalty")
        assert effects.balances(order.id) == booked(revenue=750)
        assert effects.points(order.id) == 7


def test_p25_points_of_two_refunds_are_taken_back_once_each(services, stack, topic, effects, tag) -> None:
    """FAULTS 23: each refund is told three times, twice under its id and once under another."""
    order = topic.order(tag)
    order.says("qualified", received=1000)
    for refunded in (300, 1000):
        event = order.says("refunded", refunded=refunded)
        topic.send(event)
        last = topic.send(event | {"event_id": uuid7()})
    effects.wait_taken([last], "loyalty", "ledger")
    assert effects.entries(order.id) == [(1, 10), (2, -3), (3, -7)]
    assert effects.journals(order.id) == [1, 2, 3] and effects.balances(order.id) == {}
    assert stack.postgres.query("SELECT points FROM loyalty.customer WHERE customer_id = %s", f"c-{tag}") == [(0,)]


def test_p26_one_purchase_told_three_times_is_one_mail(services, topic, effects, sink, tag) -> None:
    """FAULTS 24: three events ask for the mail, one is sent; points and right once too."""
    order = topic.order(tag, receipt=True)
    order.contact(f"{tag}@example.org")
    for received in (1000, 1000, 2000):
        last = order.says("qualified", received=received)
    effects.wait_taken([last], *CONSUMERS)
    until(lambda: effects.mail(tag) == ("sent", 1, None), what="mail sent")
    assert len(sink.to(f"{tag}@example.org")) == 1
    assert effects.entries(tag) == [(1 + 1, 10)] and len(effects.rights(tag)) == 1


# --- The ledger is append-only

@pytest.mark.parametrize("statement", [
    "UPDATE ledger.journal SET order_id = 'x'", "DELETE FROM ledger.journal", "TRUNCATE ledger.journal CASCADE",
    "UPDATE ledger.journal_line SET amount = 1", "DELETE FROM ledger.journal_line", "TRUNCATE ledger.journal_line",
    "DELETE FROM ledger.order_position", "ALTER TABLE ledger.journal DISABLE TRIGGER ALL", "DROP TABLE ledger.journal",
    "SELECT * FROM loyalty.customer", "SELECT * FROM receipts.contact",
])
def test_p27_the_ledgers_role_cannot_change_what_is_booked(stack, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stack.postgres.query(statement, role="payonce_ledger")


def test_p27_what_does_not_sum_to_zero_is_refused(services, stack, topic, effects, tag) -> None:
    effects.wait_taken([topic.order(tag).says("pending", received=100)], "ledger")
    with stack.postgres.connect("payonce_ledger") as conn:
        for lines in ("(%(j)s, 'revenue', 1, 'USD', 2)",
                      "(%(j)s, 'revenue', 1, 'USD', 2), (%(j)s, 'customer_credit', -1, 'EUR', 2)"):
            with pytest.raises(psycopg.errors.RaiseException, match="sum to zero"):
                conn.execute("INSERT INTO ledger.journal_line VALUES " + lines, {"j": f"journal:{tag}:1"})
    assert effects.balances(tag) == booked(suspense=100) and effects.unbalanced() == []


# --- Schemas

def test_p36_versions_of_the_schema_interleaved_are_each_read_right(services, topic, effects, tag) -> None:
    """FAULTS 16: writers of five versions on one topic; each body is read by the schema that wrote it."""
    own = topic.schema(PAYMENTS)

    def version(change) -> dict[str, Any]:
        other = copy.deepcopy(own)
        change(other["fields"])
        return other

    channel = {"name": "channel", "type": "string", "default": "web", "doc": "Where it was bought."}
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": [], "doc": "Words."}
    kind = {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "A"}
    versions = [
        own,
        version(lambda f: f.insert(3, channel)),
        version(lambda f: f.extend([tags, kind])),
        version(lambda f: f.reverse()),
        version(lambda f: f.remove(next(x for x in f if x["name"] == "refund_id"))),  # the reader's default applies
    ]
    sent = []
    for i in range(30):
        order = topic.order(f"{tag}-{i}")
        event = order.event("qualified", due=1000 + i, received=2000 + i)
        more = {"channel": "till", "tags": ["a", "b"], "kind": "B"}
        sent.append(topic.send(event | more, versions[i % len(versions)]))
    effects.wait_taken(sent, *CONSUMERS)
    for i in range(30):
        assert effects.balances(f"{tag}-{i}") == booked(revenue=1000 + i, customer_credit=1000)
        assert effects.points(f"{tag}-{i}") == 10


def test_p36_a_version_that_others_could_not_read_is_refused_by_the_registry(services, stack, topic) -> None:
    other = topic.schema(PAYMENTS)
    other["fields"] = [f for f in other["fields"] if f["name"] != "due"]
    topic.body(PAYMENTS, topic.order("x").event("pending"))
    topic.keep_compatible(PAYMENTS)
    with pytest.raises(SchemaRegistryError) as refused:
        topic.register(f"{PAYMENTS}-value", other)
    assert refused.value.http_status_code == 409


# --- Partitions

def test_p18_keys_lie_where_a_java_client_looks(topic, stack, tag) -> None:
    """FAULTS 11: the vectors are Kafka's own (UtilsTest); relay's records: test_second_reader.py."""
    vectors = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
               "a-little-bit-longer-string": -1486304829,
               "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107}
    assert {k: murmur2(k.encode()) for k in vectors} == {k: v & 0xFFFFFFFF for k, v in vectors.items()}
    orders = [topic.order(f"{tag}-{i}") for i in range(30)]
    for order in orders:
        order.contact(f"{order.id}@example.org")
    topic.flush()
    at = {m.key().decode(): m.partition() for m in stack.kafka.records(CONTACTS)}
    assert {o.id: at[o.id] for o in orders} == {o.id: partition_of(o.id) for o in orders}


def test_p31_an_inbox_that_forgets_before_the_topic_does_refuses_to_start(stack, tag) -> None:
    """What is read again must still be known."""
    one = stack.service("ledger", {"PAYONCE_INBOX_RETENTION": "7d"}, tag)
    one.start()
    until(lambda: not one.alive, what="ledger refuses to start")
    assert one.exit_code == 2 and "PAYONCE_INBOX_RETENTION" in one.tail() and PAYMENTS in one.tail()


# --- Replays

def test_p19_a_batch_with_an_old_event_and_one_event_twice(services, topic, effects, tag) -> None:
    """FAULTS 14: dedupe takes the 99 new ones and the batch commits."""
    ledger = services["ledger"]
    old = topic.order(in_partition(f"{tag}-old", 0)).says("qualified", received=1000)
    effects.wait_taken([old], "ledger")
    assert ledger.term() == 0
    fresh = [topic.order(in_partition(f"{tag}-{i}-", 0)).event("qualified", received=1000) for i in range(99)]
    for event in [*fresh[:40], old, fresh[7], *fresh[40:], fresh[40]]:
        topic.send(event)
    topic.flush()
    ledger.start().wait_ready()
    effects.wait_taken(fresh, "ledger")
    until(lambda: ledger.metric("payonce_consumer_batch_messages_total") >= 102, what="102 messages taken")
    assert ledger.metric("payonce_consumer_batches_total") == 1
    assert ledger.metric("payonce_consumer_duplicates_total") == 3
    assert ledger.metric("payonce_consumer_events_total", type="payment.qualified") == 99
    for event in [old, *fresh]:
        assert effects.balances(event["order_id"]) == booked(revenue=1000)
        assert effects.journals(event["order_id"]) == [1]


@pytest.mark.parametrize("inboxes", ["kept", "truncated"])
def test_p19_the_topics_replayed_from_offset_0_change_nothing(services, stack, topic, effects, sink, tag,
                                                              inboxes: str) -> None:
    """FAULTS 14: with the inboxes every row stays; without them the business keys still hold every effect."""
    effects.wait_taken(topic.mark(tag), *CONSUMERS)
    effects.wait_drained(*CONSUMERS)
    effects.wait_drained("receipts", topics=(CONTACTS,))
    for consumer in CONSUMERS:
        assert services[consumer].term() == 0
        for name in (PAYMENTS, *([CONTACTS] if consumer == "receipts" else [])):
            stack.kafka.rewind(f"payonce-{consumer}", name)
        if inboxes == "truncated":
            stack.postgres.query(f"TRUNCATE {consumer}.inbox")
    before, mails = effects.dump(inboxes == "kept"), sink.copies()
    for consumer in CONSUMERS:
        services[consumer].start()
    effects.wait_drained(*CONSUMERS)
    effects.wait_drained("receipts", topics=(CONTACTS,))
    assert effects.dump(inboxes == "kept") == before
    assert sink.copies() == mails and effects.unbalanced() == []
