// The providers payonce speaks: a new one is its file and a line here.
#include "providers/provider.h"

#define EACH(_) \
    _(stripe)   \
    _(lightning)

#define DECLARE(name) extern const provider name;
#define POINT_TO(name) &(name),
EACH(DECLARE)

const provider *const providers[] = {EACH(POINT_TO) NULL};

const provider *provider_find(po_str name) {
    for (const provider *const *p = providers; *p; p++)
        if (po_str_is(name, (*p)->name))
            return *p;
    return NULL;
}

const policy *policy_find(po_str name) {
    for (const provider *const *p = providers; *p; p++)
        if (po_str_is(name, (*p)->policy->name))
            return (*p)->policy;
    return NULL;
}

const ref_kind *ref_kind_find(po_str provider, po_str kind) {
    const struct provider *p = provider_find(provider);
    for (const ref_kind *k = p ? p->ref_kinds : NULL; k && k->name; k++)
        if (po_str_is(kind, k->name))
            return k;
    return NULL;
}
