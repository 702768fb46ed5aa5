// The policies an order can be decided by: a provider's words, and the unit its orders are kept in.
#include "decision/decide.h"
#include "providers/words.h"

// Millisatoshi, the finest that Lightning moves; a price in satoshi is rescaled on entry.
static bool lightning_unit(po_str currency, po_unit *ret_unit) {
    if (!po_str_is(currency, "BTC"))
        return false;
    *ret_unit = (po_unit){.currency = "BTC", .exponent = 11};
    return true;
}

static const policy stripe_v1 = {.name = "stripe-v1",
                                 .version = 1,
                                 .provider = "stripe",
                                 .unit = stripe_unit,
                                 .words = stripe_words};
static const policy lightning_v1 = {.name = "lightning-v1",
                                    .version = 1,
                                    .provider = "lightning",
                                    .unit = lightning_unit,
                                    .words = lightning_words};

const policy *const policies[] = {&stripe_v1, &lightning_v1, NULL};

const policy *policy_find(po_str name) {
    for (const policy *const *p = policies; *p; p++)
        if (po_str_is(name, (*p)->name))
            return *p;
    return NULL;
}
