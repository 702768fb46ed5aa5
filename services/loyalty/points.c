// P(due) = floor(due / per): what the order gives when it is paid in full; a second payment adds nothing.
#include "points.h"

#include <inttypes.h>

static const points_rule *rule_find(const points_rules *rules, po_unit unit) {
    for (size_t i = 0; i < rules->n; i++)
        if (po_unit_eq(rules->at[i].unit, unit))
            return &rules->at[i];
    return NULL;
}

static bool rule_add(points_rules *rules, po_str item, po_err *err) {
    const char *equals = item.n ? memchr(item.p, '=', item.n) : NULL;
    points_rule one = {0};
    if (!equals || rules->n == MAX_RULES)
        return po_fail(err, PO_REFUSED, "setting", "each rule is UNIT=MINOR_UNITS, at most %d",
                       MAX_RULES);
    size_t n = (size_t)(equals - item.p);
    if (!po_unit_parse(po_str_trim((po_str){item.p, n}), &one.unit, err))
        return false;
    po_str per = po_str_trim((po_str){equals + 1, item.n - n - 1});
    if (!po_parse_i64(per, &one.per) || one.per <= 0)
        return po_fail(err, PO_REFUSED, "setting", "minor units per point are a number above 0");
    if (rule_find(rules, one.unit))
        return po_fail(err, PO_REFUSED, "setting", "%s has two rules", one.unit.currency);
    rules->at[rules->n++] = one;
    return true;
}

bool rules_parse(po_str text, points_rules *ret_rules, po_err *err) {
    points_rules got = {0};
    for (po_str rest = text; rest.n;) {
        const char *comma = memchr(rest.p, ',', rest.n);
        size_t n = comma ? (size_t)(comma - rest.p) : rest.n;
        if (!rule_add(&got, po_str_trim((po_str){rest.p, n}), err))
            return false;
        size_t used = comma ? n + 1 : n;
        if (comma && used == rest.n)
            return po_fail(err, PO_REFUSED, "setting", "a rule is missing behind the last comma");
        rest = (po_str){rest.p + used, rest.n - used};
    }
    *ret_rules = got;
    return true;
}

bool points_target(const points_rules *rules, const po_payment_event *event, int64_t *ret_points,
                   bool *ret_keep, po_err *err) {
    int64_t net = event->received - event->refunded;
    bool paid = po_str_is(event->state, "paid");
    int64_t points = 0;
    const points_rule *rule = rule_find(rules, event->unit);
    if (paid && rule && event->due > 0 &&
        !po_mul_div(event->due / rule->per, net < event->due ? net : event->due, event->due,
                    &points, err))
        return false;
    *ret_keep = !paid && !po_str_is(event->state, "reversed");
    *ret_points = points;
    return true;
}

po_str entry_key(po_arena *arena, po_str order_id, int64_t sequence) {
    return po_s(po_printf(arena, "points:%.*s:%" PRId64, (int)order_id.n, order_id.p, sequence));
}
