// payonce-relay: publishes the outboxes of PAYONCE_RELAY_OUTBOXES, a thread each, and prunes them.
#include "relay.h"
#include "retention.h"
#include "avro/registry.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "kafka/kafka.h"
#include "life/need.h"
#include "metrics/metrics.h"
#include "migration_files.h"
#include "service/service.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    MOST_OUTBOXES = 32,
    PRUNE_FIRST_MS = 3000,
    PRUNE_EVERY_MS = 60000,
    STATEMENT_MS = 5000,
    BEAT_LIMIT_MS = 300000,
    WATCH_CLOSE_MS = 2000,
};

#define HOUR_MS (3600 * 1000LL)

static const po_setting settings[] = {
    {"RELAY_OUTBOXES", PO_SET_TEXT, "ingest", 0, 0,
     "Schemas whose outbox is published, `name,name`."},
    PO_KAFKA_SETTINGS,
    {"REGISTRY_URL", PO_SET_URL, NULL, 0, 0,
     "Base URL of the schema registry (Confluent-compatible)."},
    {"REGISTRY_CA_FILE", PO_SET_PATH, "", 0, 0,
     "Certificates (PEM) that the registry's must lead to over https; empty: the system's."},
    {"RELAY_LOOK_LIMIT", PO_SET_INT, "2048", 1, 8192,
     "Most rows in one look; bodies larger than 8 MiB divided by it are read one by one."},
    {"RELAY_RETENTION", PO_SET_DURATION_MS, "24h", 10 * 1000LL, 400 * 24 * HOUR_MS,
     "How long published rows are kept; at least twice PAYONCE_RELAY_OVERLAP."},
    {"RELAY_OVERLAP", PO_SET_DURATION_MS, "1h", 1000, 24 * HOUR_MS,
     "How far before the last checkpoint rows are sent again when the outbox is found on another "
     "server."},
    {"RELAY_PERSONAL_TOPICS", PO_SET_TEXT, "contacts.v1", 0, 0,
     "Topics, `name,name`, whose published rows are kept for at most 24 h."},
    {0},
};

typedef struct outbox {
    pthread_t thread;
    relay *relay;
    retention retention;
    bool begun; // it has had a session
    bool ok;
    po_err err;
} outbox;

// The callbacks of po_service carry no argument; filled before the first thread starts.
static struct {
    relay_options options;
    char holder[128];
    outbox all[MOST_OUTBOXES];
    size_t n;
    po_metric *pruned;
    bool open;             // `all` may be shown
    pthread_mutex_t lock;  // open, and begun of all
    po_registry *registry; // for asking whether they are there, apart from those at work
    rd_kafka_t *brokers;
    po_need *need_registry, *need_brokers;
} self = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void declare_metrics(void) {
    relay_declare_metrics();
    self.pruned = po_metric_new(PO_COUNTER, "payonce_relay_pruned_total",
                                "Published rows deleted from the outbox.", "outbox");
}

// A plain lower-case name: it becomes a search_path and a channel.
static bool is_schema(const char *name) {
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && n <= 40 && name[n] == 0 && (name[0] < '0' || name[0] > '9');
}

// Cuts `text` at its commas.
static bool split(char *text, char *ret_names[MOST_OUTBOXES], size_t *ret_n, po_err *err) {
    size_t n = 0;
    for (char *save = NULL, *name = strtok_r(text, ",", &save); name;
         name = strtok_r(NULL, ",", &save)) {
        if (n == MOST_OUTBOXES || !is_schema(name))
            return po_fail(err, PO_REFUSED, "setting",
                           "PAYONCE_RELAY_OUTBOXES: '%.60s' is no schema, or one too many", name);
        for (size_t i = 0; i < n; i++)
            if (strcmp(ret_names[i], name) == 0)
                return po_fail(err, PO_REFUSED, "setting",
                               "PAYONCE_RELAY_OUTBOXES: '%s' is named twice", name);
        ret_names[n++] = name;
    }
    *ret_n = n;
    return n > 0 || po_fail(err, PO_REFUSED, "setting", "PAYONCE_RELAY_OUTBOXES names no schema");
}

static bool check(const po_config *config, po_err *err) {
    if (po_config_int(config, "RELAY_RETENTION") < 2 * po_config_int(config, "RELAY_OVERLAP"))
        return po_fail(err, PO_REFUSED, "setting",
                       "PAYONCE_RELAY_RETENTION is less than twice PAYONCE_RELAY_OVERLAP");
    rd_kafka_conf_t *conf = NULL;
    if (!po_kafka_conf(po_config_text(config, "KAFKA_BROKERS"), "", NULL,
                       po_config_text(config, "KAFKA_SETTINGS"), &conf, err))
        return po_wrap(err, "PAYONCE_KAFKA_SETTINGS_FILE");
    rd_kafka_conf_destroy(conf);
    PO_AUTO(po_registry_close) po_registry *registry = NULL;
    if (!po_registry_open(po_config_text(config, "REGISTRY_URL"),
                          po_config_text(config, "REGISTRY_CA_FILE"), &registry, err))
        return po_wrap(err, "PAYONCE_REGISTRY_URL");
    PO_AUTO(po_free_auto) char *text = strdup(po_config_text(config, "RELAY_OUTBOXES"));
    char *names[MOST_OUTBOXES];
    size_t n;
    return split(text, names, &n, err);
}

// --- What it needs

static bool ask_registry(void *registry, po_err *err) {
    return po_registry_ask(registry, err);
}

static bool ask_brokers(void *kafka, po_err *err) {
    return po_kafka_ask(kafka, err);
}

// A producer that sends nothing.
static bool open_needs(po_err *err) {
    const relay_options *o = &self.options;
    static const po_kafka_setting none[] = {{0}};
    rd_kafka_conf_t *conf = NULL;
    if (!po_registry_open(o->registry_url, o->registry_ca_file, &self.registry, err) ||
        !po_kafka_conf(o->brokers, "payonce-relay-watch", none, o->kafka_settings, &conf, err) ||
        !po_kafka_open(RD_KAFKA_PRODUCER, &conf, &self.brokers, err))
        return false;
    self.need_registry = po_need_new("registry", ask_registry, self.registry);
    self.need_brokers = po_need_new("kafka", ask_brokers, self.brokers);
    po_need_demand(self.need_registry, false); // as long as it stands by
    po_need_demand(self.need_brokers, false);
    return true;
}

static void close_needs(void) {
    po_need_end(self.need_registry);
    po_need_end(self.need_brokers);
    po_registry_close(&self.registry);
    po_kafka_destroy(&self.brokers, WATCH_CLOSE_MS);
}

// Ready once each outbox has had its session. While all stand by, that asks for neither brokers nor
// registry.
static void on_role(const char *name, bool active) {
    bool all = true;
    if (active) {
        po_need_demand(self.need_registry, true);
        po_need_demand(self.need_brokers, true);
    }
    pthread_mutex_lock(&self.lock);
    for (size_t i = 0; i < self.n; i++) {
        outbox *one = &self.all[i];
        one->begun = one->begun || strcmp(one->retention.outbox, name) == 0;
        all = all && one->begun;
    }
    pthread_mutex_unlock(&self.lock);
    if (all)
        po_ready_set(true);
}

// --- Threads

static void *publish(void *arg) {
    outbox *one = arg;
    one->ok = relay_run(one->relay, &one->err);
    if (!one->ok)
        po_stop();
    return NULL;
}

static void prune(outbox *one) {
    po_pg_options options = self.options.pg;
    po_err err = {0};
    po_pg *pg = NULL;
    int64_t deleted = 0;
    if (!po_pg_open(&options, &pg, &err) || !retention_pass(&one->retention, pg, &deleted, &err))
        po_log_err(PO_WARN, "pruning will be tried again", &err,
                   PO_TEXT("outbox", one->retention.outbox));
    po_count(self.pruned, one->retention.outbox, deleted);
    po_pg_close(&pg);
}

static void *prune_all(void *arg) {
    po_beat *beat = arg;
    int64_t every_ms = self.all[0].retention.age_ms / 10;
    if (every_ms > PRUNE_EVERY_MS)
        every_ms = PRUNE_EVERY_MS;
    for (int64_t wait_ms = PRUNE_FIRST_MS; po_life_wait(wait_ms); wait_ms = every_ms) {
        for (size_t i = 0; i < self.n; i++) {
            po_beat_tick(beat);
            if (relay_active(self.all[i].relay))
                prune(&self.all[i]);
        }
    }
    po_beat_end(beat);
    return NULL;
}

// --- Life

static void fill_options(const po_config *config) {
    char host[64] = "", instance[PO_UUID_SIZE];
    (void)gethostname(host, sizeof host - 1);
    po_uuid_text(po_uuid_v7(po_now_us()), instance); // a container's first process is always 1
    snprintf(self.holder, sizeof self.holder, "%s:%d:%s", host, (int)getpid(), instance);
    self.options = (relay_options){
        .pg = {.dsn = po_config_text(config, "DSN"),
               .application_name = "payonce-relay",
               .statement_timeout_ms = STATEMENT_MS,
               .by_index = true},
        .brokers = po_config_text(config, "KAFKA_BROKERS"),
        .kafka_settings = po_config_text(config, "KAFKA_SETTINGS"),
        .registry_url = po_config_text(config, "REGISTRY_URL"),
        .registry_ca_file = po_config_text(config, "REGISTRY_CA_FILE"),
        .holder = self.holder,
        .look_limit = (int32_t)po_config_int(config, "RELAY_LOOK_LIMIT"),
        .overlap_us = po_config_int(config, "RELAY_OVERLAP") * 1000,
        .on_role = on_role,
    };
}

static bool open_all(const po_config *config, char *names[], size_t n, po_err *err) {
    for (size_t i = 0; i < n; i++) {
        outbox *one = &self.all[i];
        one->retention =
            (retention){.outbox = names[i],
                        .age_ms = po_config_int(config, "RELAY_RETENTION"),
                        .personal_topics = po_config_text(config, "RELAY_PERSONAL_TOPICS")};
        if (!relay_open(&self.options, names[i], &one->relay, err))
            return false;
        self.n = i + 1;
    }
    return true;
}

static void set_open(bool open) {
    pthread_mutex_lock(&self.lock);
    self.open = open;
    pthread_mutex_unlock(&self.lock);
}

static bool run_all(po_err *err) {
    pthread_t pruner;
    po_beat *beat = po_beat_new("retention", BEAT_LIMIT_MS);
    for (size_t i = 0; i < self.n; i++)
        self.all[i].retention.beat = beat;
    if (pthread_create(&pruner, NULL, prune_all, beat) != 0)
        abort();
    for (size_t i = 0; i < self.n; i++)
        if (pthread_create(&self.all[i].thread, NULL, publish, &self.all[i]) != 0)
            abort();
    bool ok = true;
    for (size_t i = 0; i < self.n; i++) {
        pthread_join(self.all[i].thread, NULL);
        if (ok && !self.all[i].ok)
            *err = self.all[i].err;
        ok = ok && self.all[i].ok;
    }
    pthread_join(pruner, NULL);
    return ok;
}

static bool run(const po_config *config, po_err *err) {
    PO_AUTO(po_free_auto) char *text = strdup(po_config_text(config, "RELAY_OUTBOXES"));
    char *names[MOST_OUTBOXES];
    size_t n;
    if (!split(text, names, &n, err))
        return false;
    fill_options(config);
    bool ok = open_all(config, names, n, err) && open_needs(err);
    set_open(ok);
    ok = ok && run_all(err);
    set_open(false);
    close_needs();
    for (size_t i = 0; i < self.n; i++)
        relay_close(&self.all[i].relay);
    return ok;
}

static json_t *status(void) {
    json_t *outboxes = json_array();
    pthread_mutex_lock(&self.lock);
    for (size_t i = 0; self.open && i < self.n; i++)
        json_array_append_new(outboxes, relay_status(self.all[i].relay));
    pthread_mutex_unlock(&self.lock);
    return json_pack("{s:o}", "outboxes", outboxes);
}

int main(int argc, char **argv) {
    static const po_service service = {
        .name = "relay",
        .about = "Publishes committed outbox rows to Kafka, at least once, in order per key.",
        .settings = settings,
        .migrations = migration_files,
        .declare_metrics = declare_metrics,
        .check = check,
        .show = po_kafka_show,
        .run = run,
        .status = status,
    };
    return po_kafka_exit(po_service_main(argc, argv, &service));
}
