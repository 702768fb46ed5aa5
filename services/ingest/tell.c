// Called for each event of a batch, thousands a second: whether a line is due comes first.
#include "tell.h"
#include "log/log.h"

// What was not decided: only known by what it was.
static const char *verdict_of(const event *e) {
    if (e->outcome)
        return verdict_name(e->outcome->decision.after.verdict);
    if (e->same != EVENT_RECORDED || e->obs.disposition != OBS_FACTS)
        return NULL;
    return e->obs.n_facts ? "undecided" : "noted";
}

void tell_event(const event *e, const char *result) {
    static po_log_site recorded = {.name = "event_recorded"}, repeated = {.name = "event_repeated"};
    const outcome *o = e->outcome;
    bool review = o && o->decision.emits == EVENT_REVIEW_REQUIRED;
    if (!review && !po_log_admit(e->same == EVENT_RECORDED ? &recorded : &repeated))
        return;
    po_str order_id = o ? o->held->order.id : e->obs.order_id;
    char order[256];
    (void)snprintf(order, sizeof order, "%.*s", (int)order_id.n, order_id.n ? order_id.p : "");
    po_log(review ? PO_WARN : PO_INFO, review ? "order needs review" : "event",
           PO_TEXT("result", result), PO_TEXT("provider", e->provider.p),
           PO_TEXT("account", e->alias.p), PO_TEXT("event_id", e->obs.event_id.p),
           PO_TEXT("type", e->obs.type.p), PO_TEXT("order_id", order_id.n ? order : NULL),
           PO_TEXT("verdict", verdict_of(e)),
           PO_TEXT("reason", o ? o->decision.after.reason : NULL),
           PO_TEXT("traceparent", e->trace.parent.n ? e->trace.parent.p : NULL));
}
