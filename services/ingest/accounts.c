// Every fault names the account and what is wrong with it: PO_REFUSED "accounts".
#include "accounts.h"
#include "base/cleanup.h"
#include "json/json.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct accounts {
    po_arena *arena;
    account *all;
    size_t n;
    atomic_bool agreed;
};

static bool read_whole(const char *path, po_arena *arena, po_str *ret_text, po_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO would wait for its writer
    struct stat about;
    bool regular = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
    FILE *file = regular ? fdopen(fd, "r") : NULL;
    if (!file) {
        if (fd >= 0)
            (void)close(fd);
        return po_fail(err, PO_REFUSED, "accounts", "cannot open %s, or it is no regular file",
                       path);
    }
    PO_AUTO(po_buf_done) po_buf text = {0};
    char block[4096];
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;)
        po_buf_put(&text, block, n);
    bool failed = ferror(file) != 0;
    (void)fclose(file);
    *ret_text = po_str_copy(arena, po_buf_view(&text));
    return !failed || po_fail(err, PO_REFUSED, "accounts", "cannot read %s", path);
}

static bool read_secrets(accounts *a, const json_t *files, account *ret, po_err *err) {
    size_t n = json_array_size(files);
    const char **secrets = po_alloc_array(a->arena, n + 1, sizeof *secrets);
    for (size_t i = 0; i < n; i++) {
        const char *path = po_json_string(json_array_get(files, i));
        po_str text;
        if (!path || !read_whole(path, a->arena, &text, err)) {
            return path ? false
                        : po_fail(err, PO_REFUSED, "accounts",
                                  "a secret file's name is not a string");
        }
        while (text.n && (text.p[text.n - 1] == '\n' || text.p[text.n - 1] == '\r'))
            text.n--;
        secrets[i] = po_strdup(a->arena, po_str_copy(a->arena, text).p);
        const char *problem =
            memchr(text.p, 0, text.n) ? "holds a NUL" : ret->provider->check_secret(secrets[i]);
        if (problem) {
            return po_fail(err, PO_REFUSED, "accounts", "the secret in %s is unusable: %s", path,
                           problem);
        }
    }
    ret->secrets = secrets;
    return n > 0 || po_fail(err, PO_REFUSED, "accounts", "no secret_files: anyone could sign");
}

static bool refuse(po_err *err, const char *what) {
    return po_fail(err, PO_REFUSED, "accounts", "%s", what);
}

static bool leads_to(const account *a, po_str alias) {
    for (const char *const *one = a->aliases; *one; one++)
        if (po_str_is(alias, *one))
            return true;
    return false;
}

static bool read_alias(accounts *a, po_str text, const char **aliases, size_t n, po_err *err) {
    if (!po_is_id(text, PO_ID_MAX) || strpbrk(text.p, "/:,"))
        return refuse(err, "a name and an alias are printable ASCII without spaces and \"/:,\"");
    for (size_t i = 0; i < n; i++)
        if (po_str_is(text, aliases[i]))
            return refuse(err, "an alias is there twice");
    aliases[n] = po_str_copy(a->arena, text).p;
    return true;
}

// Aliases that are not stated are the name alone.
static bool read_aliases(accounts *a, const json_t *one, account *ret, po_err *err) {
    const json_t *list = NULL;
    if (!po_json_array(one, "aliases", &list, err))
        return false;
    if (json_object_get(one, "aliases") && json_array_size(list) == 0)
        return refuse(err, "aliases is a list, not empty");
    size_t n = list ? json_array_size(list) : 1;
    const char **aliases = po_alloc_array(a->arena, n + 1, sizeof *aliases);
    for (size_t i = 0; i < n; i++) {
        const char *text = list ? po_json_string(json_array_get(list, i)) : ret->name;
        if (!read_alias(a, po_s(text), aliases, i, err))
            return false;
    }
    ret->aliases = aliases;
    return true;
}

static bool read_name(accounts *a, const json_t *one, account *ret, po_err *err) {
    po_str name = {0}, alias = {0};
    const char *checked[1];
    if (!po_json_id_opt(one, "name", &name, err) || !po_json_id_opt(one, "alias", &alias, err))
        return false;
    if (!name.n == !alias.n || (alias.n && json_object_get(one, "aliases")))
        return refuse(err, "either name, and aliases, or alias alone");
    if (!read_alias(a, po_str_copy(a->arena, name.n ? name : alias), checked, 0, err))
        return false;
    ret->name = checked[0];
    return read_aliases(a, one, ret, err);
}

static bool share_a_word(const account *a, const account *b) {
    if (leads_to(a, po_s(b->name)) || leads_to(b, po_s(a->name)))
        return true;
    for (const char *const *alias = a->aliases; *alias; alias++)
        if (leads_to(b, po_s(*alias)))
            return true;
    return strcmp(a->name, b->name) == 0;
}

// Two entries are two accounts: nothing leads to both, and their ids tell them apart.
static bool check_apart(const account *a, const account *b, po_err *err) {
    if (a->provider != b->provider)
        return true;
    if (share_a_word(a, b)) {
        return po_fail(err, PO_REFUSED, "accounts", "a name or an alias is that of %s, too",
                       b->name);
    }
    if (a->live != b->live)
        return true;
    if (!a->id || !b->id) {
        return po_fail(err, PO_REFUSED, "accounts",
                       "%s is in the same mode: both need the provider's id, as \"account\"",
                       b->name);
    }
    return strcmp(a->id, b->id) != 0 ||
           po_fail(err, PO_REFUSED, "accounts", "the id is that of %s, too: one account, one entry",
                   b->name);
}

static bool read_words(accounts *a, const json_t *one, account *ret, po_err *err) {
    po_str provider = {0}, mode = {0}, id = {0};
    if (!po_json_id(one, "provider", &provider, err) || !po_json_id(one, "mode", &mode, err) ||
        !po_json_id_opt(one, "account", &id, err) ||
        !po_json_bool_opt(one, "client_reference_id", &ret->client_reference, err))
        return false;
    ret->provider = provider_find(provider);
    ret->live = po_str_is(mode, "live");
    ret->id = id.n ? po_str_copy(a->arena, id).p : NULL;
    if (!ret->provider) {
        return po_fail(err, PO_REFUSED, "accounts", "unknown provider \"%.*s\"", (int)provider.n,
                       provider.p);
    }
    return ret->live || po_str_is(mode, "test") || refuse(err, "mode is neither live nor test");
}

static bool read_account(accounts *a, const json_t *one, account *ret, po_err *err) {
    if (!read_words(a, one, ret, err) || !read_name(a, one, ret, err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < a->n; i++)
        ok = check_apart(ret, &a->all[i], err);
    const json_t *files = NULL;
    return (ok && po_json_array(one, "secret_files", &files, err) &&
            read_secrets(a, files, ret, err)) ||
           po_wrap(err, "account %s/%s", ret->provider->name, ret->name);
}

static bool read_all(accounts *a, const json_t *list, po_err *err) {
    size_t n = json_array_size(list);
    a->all = po_alloc_array(a->arena, n + 1, sizeof *a->all);
    for (size_t i = 0; i < n; i++) {
        if (!read_account(a, json_array_get(list, i), &a->all[i], err))
            return po_wrap(err, "entry %zu", i + 1);
        a->n++;
    }
    return n > 0 || po_fail(err, PO_REFUSED, "accounts", "there is no account");
}

bool accounts_load(const char *path, accounts **ret_accounts, po_err *err) {
    PO_AUTO(accounts_free) accounts *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    a->arena = po_arena_new();
    po_str text;
    json_t *root = NULL;
    const json_t *list = NULL;
    bool ok = read_whole(path, a->arena, &text, err) && po_json_parse(text, &root, err) &&
              po_json_array(root, "accounts", &list, err) && read_all(a, list, err);
    json_decref(root);
    if (!ok)
        return po_wrap(err, "ACCOUNTS_FILE");
    *ret_accounts = po_take(&a);
    return true;
}

void accounts_free(accounts **accounts) {
    if (*accounts) {
        po_arena_free(&(*accounts)->arena);
        free(*accounts);
        *accounts = NULL;
    }
}

const account *accounts_at(const accounts *accounts, po_str provider, po_str alias) {
    for (size_t i = 0; i < accounts->n; i++) {
        const account *a = &accounts->all[i];
        if (leads_to(a, alias) && po_str_is(provider, a->provider->name))
            return a;
    }
    return NULL;
}

const account *accounts_named(const accounts *accounts, po_str provider, po_str name) {
    for (size_t i = 0; i < accounts->n; i++) {
        const account *a = &accounts->all[i];
        if (po_str_is(name, a->name) && po_str_is(provider, a->provider->name))
            return a;
    }
    return NULL;
}

const account *accounts_entry(const accounts *accounts, size_t i) {
    return i < accounts->n ? &accounts->all[i] : NULL;
}

bool accounts_agreed(const accounts *accounts) {
    return accounts->agreed;
}

void accounts_set_agreed(accounts *accounts) {
    accounts->agreed = true;
}

bool accounts_lists(po_str names, po_str name) {
    for (size_t at = 0; at < names.n;) {
        const char *space = memchr(names.p + at, ' ', names.n - at);
        size_t n = space ? (size_t)(space - names.p) - at : names.n - at;
        if (po_str_eq((po_str){names.p + at, n}, name))
            return true;
        at += n + 1;
    }
    return false;
}
