// Every fault names the account and what is wrong with it: PO_REFUSED "accounts".
#include "accounts.h"
#include "base/cleanup.h"
#include "json/json.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct accounts {
    po_arena *arena;
    account *all;
    size_t n;
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

static bool read_account(accounts *a, const json_t *one, account *ret, po_err *err) {
    po_str provider = {0}, alias = {0}, mode = {0}, id = {0};
    if (!po_json_id(one, "provider", &provider, err) || !po_json_id(one, "alias", &alias, err) ||
        !po_json_id(one, "mode", &mode, err) || !po_json_id_opt(one, "account", &id, err) ||
        !po_json_bool_opt(one, "client_reference_id", &ret->client_reference, err))
        return false;
    ret->alias = po_str_copy(a->arena, alias).p;
    ret->provider = provider_find(provider);
    ret->live = po_str_is(mode, "live");
    ret->id = id.n ? po_str_copy(a->arena, id).p : NULL;
    if (!ret->provider) {
        return po_fail(err, PO_REFUSED, "accounts", "unknown provider \"%.*s\"", (int)provider.n,
                       provider.p);
    }
    if (!ret->live && !po_str_is(mode, "test"))
        return po_fail(err, PO_REFUSED, "accounts", "mode is neither live nor test");
    if (strpbrk(ret->alias, "/:,") || accounts_find(a, provider, alias))
        return po_fail(err, PO_REFUSED, "accounts", "alias holds one of \"/:,\" or is there twice");
    const json_t *files = NULL;
    return (po_json_array(one, "secret_files", &files, err) && read_secrets(a, files, ret, err)) ||
           po_wrap(err, "account %s/%s", ret->provider->name, ret->alias);
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

const account *accounts_find(const accounts *accounts, po_str provider, po_str alias) {
    for (size_t i = 0; i < accounts->n; i++) {
        const account *a = &accounts->all[i];
        if (po_str_is(alias, a->alias) && po_str_is(provider, a->provider->name))
            return a;
    }
    return NULL;
}

bool accounts_lists(po_str aliases, po_str alias) {
    for (size_t at = 0; at < aliases.n;) {
        const char *space = memchr(aliases.p + at, ' ', aliases.n - at);
        size_t n = space ? (size_t)(space - aliases.p) - at : aliases.n - at;
        if (po_str_eq((po_str){aliases.p + at, n}, alias))
            return true;
        at += n + 1;
    }
    return false;
}
