// docs/events.md: what another team needs to read our topics. Fields and their docs come from the
// schemas and topics from topics.json, so the page cannot tell another story than the wire.
#include "event/event.h"
#include "base/cleanup.h"
#include "json/json.h"
#include "schema_files.h"
#include "topic_files.h"
#include <stdlib.h>

static const char intro[] =
    "# Events\n\n"
    "What payonce publishes, and what a reader may rely on. This page is printed by "
    "`po_events_markdown` "
    "(common/event) from the schemas, and a test compares it.\n\n"
    "- **At least once, in order per key.** The same event may come again, never another one under "
    "its id; "
    "the first copies of a key's events come in order of `ce_sequence`.\n"
    "- **Move to the position, never sum.** Every payment event carries the order's whole position "
    "after it. "
    "A reader keeps the last sequence it applied per order and moves to what a higher one says; a "
    "sequence "
    "that is not above it changes nothing.\n"
    "- **Key effects by what they mean** (order, sequence, qualification), never by event or "
    "refund id.\n"
    "- **Ignore what you do not know**: a type, a field or a header may be added at any time.\n\n";

static const struct {
    const char *name, *record;
} topics[] = {
    {PO_TOPIC_PAYMENTS, "PaymentEvent"},
    {PO_TOPIC_CONTACTS, "Contact, or a tombstone"},
};

static const char contacts[] =
    "\nThe key of every message is the order id; partitions are chosen as Java clients do "
    "(murmur2). Both topics "
    "share the order's one sequence counter, so holes within a topic are normal. `contacts.v1` is "
    "personal data: "
    "only the service that sends receipts may read it. A tombstone (no value) erases an order's "
    "address, and compaction takes it off the disk within about a day. It is written to every "
    "partition of the topic, under one `ce_id`, since partitions may have been added after the "
    "address was written; one that was replaced since then lies in its old partition until it is "
    "erased. Keep the highest sequence "
    "per "
    "order, tombstones included, so that a late copy changes nothing.\n\n";

static const char headers[] =
    "## Headers\n\n"
    "CloudEvents 1.0, Kafka binary binding, on every message, tombstones included.\n\n"
    "| header | value |\n"
    "|---|---|\n"
    "| `ce_specversion` | `1.0` |\n"
    "| `ce_id` | UUIDv7 of the event; PaymentEvent repeats it as `event_id` |\n"
    "| `ce_type` | `payonce.` and the event's type: `payonce.payment.qualified`; on contacts.v1 "
    "`payonce.contact.set` and `payonce.contact.erased` |\n"
    "| `ce_source` | who published it: `/payonce/ingest` |\n"
    "| `ce_time` | when it happened, RFC 3339 |\n"
    "| `ce_subject` | the key: the order id |\n"
    "| `ce_sequence` | the order's counter, a decimal number that rises |\n"
    "| `content-type` | `application/avro` |\n"
    "| `traceparent`, `tracestate` | W3C Trace Context of the request that caused it; optional "
    "|\n\n";

static const char value[] = "## Value\n\n"
                            "Confluent's frame: the byte `0x00`, the schema's id in the registry "
                            "(4 bytes, big-endian), then Avro binary. "
                            "The subject is the topic and `-value`.\n\n"
                            "Compatibility is `FULL_TRANSITIVE`: every version reads every other. "
                            "So a field is only ever added, with a "
                            "default, or removed if it has one; none is renamed or changes its "
                            "type or unit. Words (`type`, `state`, "
                            "`verdict`) are strings, not enums, because a new word is no new "
                            "schema. Another meaning is another topic "
                            "(`payments.v2`).\n\n"
                            "No text holds U+0000 or is longer than 1000 bytes, ids of orders and "
                            "customers are of 1 to 255 bytes, and times lie in the years 1 to "
                            "9999: a message that says otherwise is no event, and payonce's "
                            "reader refuses it.\n\n";

// The columns after `means` are what our own consumers do.
static const struct {
    const char *type, *means, *ledger, *loyalty, *receipts, *access;
} effects[] = {
    {"pending, canceled, failed", "new state, not paid", "to target", "–", "–", "–"},
    {"adjusted", "money moved, state as before (a second payment, still short)", "to target",
     "to target", "–", "as `right` says"},
    {"review_required", "state review: a person, or more money, must decide",
     "to target (all to suspense)", "–", "–", "a grant not yet sent: suspended"},
    {"qualified", "state paid", "to target", "to target", "one mail",
     "grant, or resume the suspended one"},
    {"refunded", "refunded rose or fell", "to target", "to target", "–", "as `right` says"},
    {"reversed", "state reversed: the network or provider took the payment back", "to target",
     "to target (0)", "–", "not sent: suspended; else revoke"},
    {"dispute_opened, dispute_closed", "disputed money moved", "to target", "by what is left", "–",
     "as `right` says"},
};

static const char targets[] = "\nWith net = received − refunded (never negative):\n\n"
                              "- *Ledger target*: clearing = net, against, in state paid, revenue "
                              "= min(net, due) and customer credit = "
                              "the rest; in any other state suspense = net. A journal books target "
                              "− booked; none if they are equal.\n"
                              "- *Points target*: state paid: ⌊P(due) × min(net, due) / due⌋; "
                              "reversed: 0; any other state: unchanged.\n"
                              "- *Full refund*: net = 0. With due = 0 there is no journal and "
                              "there are no points; grant and mail as usual.\n"
                              "- `right` says what the customer is entitled to after the event, "
                              "whatever its type; move to (`right`, `qualification`). Empty, it "
                              "is not stated (events of before it existed): type and state say "
                              "it.\n"
                              "- `qualification` is 0 before the order is first paid and rises "
                              "whenever `right` goes from `revoke` back to `grant`: after a "
                              "reversal, a lost dispute, a full refund that failed or was paid "
                              "again. Back from review, or topped up, it stays, so points, mail "
                              "and grant are not repeated.\n"
                              "- `accounts` says what lies on each provider account. An empty "
                              "list is *not stated*, never *nothing*.\n\n";

// Our own embedded files: that they are JSON is not in doubt.
static json_t *parsed(const po_file *files, const char *name) {
    json_t *json = NULL;
    for (; files->name; files++)
        if (!strcmp(files->name, name) && po_json_parse(po_s(files->text), &json, NULL))
            return json;
    abort();
}

static const char *text(const json_t *object, const char *key) {
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static void drop(json_t **json) {
    json_decref(*json);
}

static void print_topics(FILE *out) {
    PO_AUTO(drop) json_t *list = parsed(topic_files, "topics.json");
    fputs("## Topics\n\nAs schemas/topics.json creates them; partitions and replicas are the "
          "operator's choice.\n\n"
          "| topic | value | subject | partitions | settings |\n|---|---|---|---|---|\n",
          out);
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++) {
        size_t k;
        json_t *topic, *setting;
        json_array_foreach(list, k, topic) {
            if (strcmp(text(topic, "name"), topics[i].name))
                continue;
            fprintf(out, "| `%s` | %s | `%s-value` | %" JSON_INTEGER_FORMAT " |", topics[i].name,
                    topics[i].record, topics[i].name,
                    json_integer_value(json_object_get(topic, "partitions")));
            const char *name;
            json_object_foreach(json_object_get(topic, "config"), name, setting)
                fprintf(out, " `%s=%s`", name, json_string_value(setting));
            fputs(" |\n", out);
        }
    }
}

static void print_types(FILE *out) {
    fputs("## Payment events\n\nThe type is `payment.` and one of these words. The last four "
          "columns are what "
          "payonce's own consumers do.\n\n"
          "| type | means | ledger | loyalty | receipts | access |\n|---|---|---|---|---|---|\n",
          out);
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++)
        fprintf(out, "| %s | %s | %s | %s | %s | %s |\n", effects[i].type, effects[i].means,
                effects[i].ledger, effects[i].loyalty, effects[i].receipts, effects[i].access);
    fputs(targets, out);
}

// "string", "null or string", "long, timestamp-millis".
static void print_type(FILE *out, const json_t *type) {
    size_t i;
    json_t *branch;
    if (json_is_string(type)) {
        fputs(json_string_value(type), out);
    } else if (json_is_array(type)) {
        json_array_foreach(type, i, branch) {
            fputs(i ? " or " : "", out);
            print_type(out, branch);
        }
    } else if (!strcmp(text(type, "type"), "array")) {
        fprintf(out, "array of %s", text(json_object_get(type, "items"), "name"));
    } else {
        fprintf(out, "%s, %s", text(type, "type"), text(type, "logicalType"));
    }
}

static void print_fields(FILE *out, const json_t *record) {
    size_t i;
    json_t *field;
    fputs("| field | type | meaning |\n|---|---|---|\n", out);
    json_array_foreach(json_object_get(record, "fields"), i, field) {
        fprintf(out, "| `%s` | ", text(field, "name"));
        print_type(out, json_object_get(field, "type"));
        fprintf(out, " | %s |\n", text(field, "doc"));
    }
}

static void print_schema(FILE *out, const po_file *file) {
    PO_AUTO(drop) json_t *schema = parsed(schema_files, file->name);
    size_t i;
    json_t *field;
    fprintf(out, "## %s\n\n`%s.%s`, schemas/%s. %s\n\n", text(schema, "name"),
            text(schema, "namespace"), text(schema, "name"), file->name, text(schema, "doc"));
    print_fields(out, schema);
    json_array_foreach(json_object_get(schema, "fields"), i, field) {
        const json_t *items = json_object_get(json_object_get(field, "type"), "items");
        if (!items)
            continue;
        fprintf(out, "\n### %s\n\n%s\n\n", text(items, "name"), text(items, "doc"));
        print_fields(out, items);
    }
}

void po_events_markdown(FILE *out) {
    fputs(intro, out);
    print_topics(out);
    fputs(contacts, out);
    fputs(headers, out);
    fputs(value, out);
    print_types(out);
    for (const po_file *file = schema_files; file->name; file++) {
        print_schema(out, file);
        fputs(file[1].name ? "\n" : "", out);
    }
}
