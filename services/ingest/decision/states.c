// The tables the core decides by, printed as docs/states.md.
#include "decision/evaluate.h"
#include "providers/words.h"

static void print_policy(FILE *out, const policy *p) {
    fprintf(out, "\n## %s (version %d)\n\n", p->name, p->version);
    fprintf(out, "The first row that matches an event says what it states; the highest rank seen "
                 "of one payment wins, in "
                 "any\norder of arrival. `*` is any word.\n\n"
                 "| event | provider's word | state | rank | why |\n|---|---|---|---|---|\n");
    for (const word *w = p->words; w->type; w++)
        fprintf(out, "| `%s` | %s%s%s | %s%s | %d | %s |\n", w->type, *w->status ? "`" : "",
                w->status[0] ? w->status : "none", *w->status ? "`" : "", fact_state_name(w->state),
                w->waived ? ", waived" : "", w->rank, w->why);
    fprintf(out,
            "| anything else of these events | any | unsupported | 0 | visible, never paid |\n");
}

static void print_rules(FILE *out) {
    fprintf(out, "\n## From facts to a position\n\n"
                 "All facts of the order are read each time; the first row that is true counts. "
                 "Reviews above `over_refunded`\n"
                 "are ended by a person; it and those below *qualified* by money.\n\n"
                 "| order state | verdict | reason | why |\n|---|---|---|---|\n");
    const rule *r = rules;
    do
        fprintf(out, "| %s | %s | %s | %s |\n", order_state_name(r->state),
                r->verdict == VERDICT_NONE ? "–" : verdict_name(r->verdict),
                *r->reason ? r->reason : "–", r->why);
    while (r++->sign);
}

static const char *when_text(change when) {
    switch (when) {
    case WHEN_PENDING:
        return "verdict newly pending";
    case WHEN_FAILED:
        return "verdict newly failed";
    case WHEN_REASON:
        return "another reason";
    case WHEN_REFUNDED:
        return "refunded changed";
    case WHEN_MONEY:
        return "received or due changed";
    case WHEN_IMPOSSIBLE:
        return "impossible";
    case WHEN_ELSE:
        break;
    }
    return "otherwise";
}

static void print_transitions(FILE *out) {
    fprintf(out, "\n## Transitions\n\n"
                 "A decision moves the order from one state to another (or leaves it) and emits at "
                 "most one event: that of\n"
                 "the first row of its pair that holds. An *impossible* move can only come of "
                 "damaged facts: the order is\n"
                 "held in review instead, reason `" REASON_IMPOSSIBLE "`.\n\n"
                 "| from | to | when | emits | why |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < n_transitions; i++) {
        const transition *t = &transitions[i];
        const char *emits = event_type_name(t->emits);
        fprintf(out, "| %s | %s | %s | %s | %s |\n", order_state_name(t->from),
                order_state_name(t->to), when_text(t->when), *emits ? emits : "–", t->why);
    }
}

void decide_print_states(FILE *out) {
    fprintf(out, "# States\n\nPrinted by `payonce-ingest print-states`; a test compares this page "
                 "with the program.\n");
    for (const provider *const *p = providers; *p; p++)
        print_policy(out, (*p)->policy);
    print_rules(out);
    print_transitions(out);
}
