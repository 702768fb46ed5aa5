// How a consumer program is put together: its settings behind the SDK's, the topics of its routes,
// the loop with a batch as its body, the inbox pruned between batches. The order of ending: the
// batch in hand, the group, the connection, then the consumer's own workers.
#include "consumer/consumer.h"

#include "avro/registry.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "consumer/batch.h"
#include "consumer/loop.h"
#include "consumer/meter.h"
#include "consumer/retention.h"
#include "life/need.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    MAX_TOPICS = 8,
    BLOCKED_RETRY_MS = 5000,
    LOCK_TIMEOUT_MS = 1000, // all partitions wait while the one event is found that meets a lock
    // A server that falls silent is given up after twice that and 5 s; SIGTERM may have to wait for
    // it, and for the group to be left, within the usual 30 s of grace.
    STATEMENT_TIMEOUT_MS = 8000,
    BEAT_LIMIT_MS = 120000, // a batch is bounded by its statements' time-outs
    PRUNE_EVERY_MS = 60000,
    WINDOW_EVERY_MS = 3600000,
    LOOK_MS = 100, // between two looks whether an answer is in
    LAG_EVERY_MS = 10000,
    LAG_MS = 1000, // for Kafka's answers to it
    LEFT_OUT_EVERY_MS = 10000,
    LEFT_OUT_TIMES = 3, // in a row: a partition that was added has its reader by then
};

static const po_setting sdk_settings[] = {
    PO_KAFKA_SETTINGS,
    {"REGISTRY_URL", PO_SET_URL, NULL, 0, 0,
     "Base URL of the schema registry (Confluent-compatible)."},
    {"REGISTRY_CA_FILE", PO_SET_PATH, "", 0, 0,
     "Certificates (PEM) that the registry's must lead to over https; empty: the system's."},
    {"BATCH", PO_SET_INT, "500", 1, 10000, "Most messages in one transaction."},
    {"INBOX_RETENTION", PO_SET_DURATION_MS, "9d", 24 * 3600 * 1000LL, 3650 * 24 * 3600 * 1000LL,
     "How long the inbox knows an event; at least the topics' retention.ms, segment.ms and one "
     "day, "
     "checked at start and hourly."},
    {0},
};

// The callbacks of po_service carry no argument; a process is one consumer.
static const po_consumer *self;
static po_setting *settings;
static pthread_mutex_t loop_lock =
    PTHREAD_MUTEX_INITIALIZER; // /statusz against the end of the loop
static po_loop *shown_loop;

static size_t settings_add(size_t n, const po_setting *table) {
    for (; table && table->name; table++) {
        settings = reallocarray(settings, n + 2, sizeof *settings);
        if (!settings)
            abort();
        settings[n++] = *table;
        settings[n] = (po_setting){0};
    }
    return n;
}

static void route_topics(const char *ret_topics[static MAX_TOPICS + 1]) {
    size_t n = 0;
    for (const po_consumer_route *route = self->routes; route->topic; route++) {
        size_t i = 0;
        while (i < n && strcmp(ret_topics[i], route->topic) != 0)
            i++;
        if (i < n)
            continue;
        if (n == MAX_TOPICS)
            abort();
        ret_topics[n++] = route->topic;
    }
    ret_topics[n] = NULL;
}

static void declare_metrics(void) {
    po_meter_declare();
    if (self->declare_metrics)
        self->declare_metrics();
}

static json_t *status(void) {
    pthread_mutex_lock(&loop_lock);
    json_t *object = shown_loop ? po_loop_status(shown_loop) : json_object();
    pthread_mutex_unlock(&loop_lock);
    return object;
}

static void show_loop(po_loop *loop) {
    pthread_mutex_lock(&loop_lock);
    shown_loop = loop;
    pthread_mutex_unlock(&loop_lock);
}

static bool make_conf(const po_config *config, const po_kafka_setting *settings_of,
                      rd_kafka_conf_t **ret_conf, po_err *err) {
    char group[128];
    snprintf(group, sizeof group, "payonce-%s", self->name);
    po_kafka_setting table[32] = {{"group.id", group}};
    for (size_t i = 0; settings_of[i].name; i++)
        table[i + 1] = settings_of[i];
    return po_kafka_conf(po_config_text(config, "KAFKA_BROKERS"), group, table,
                         po_config_text(config, "KAFKA_SETTINGS"), ret_conf, err);
}

static bool check(const po_config *config, po_err *err) {
    rd_kafka_conf_t *conf = NULL;
    if (!make_conf(config, po_loop_settings, &conf, err))
        return po_wrap(err, "PAYONCE_KAFKA_SETTINGS_FILE");
    rd_kafka_conf_destroy(conf);
    PO_AUTO(po_registry_close) po_registry *registry = NULL;
    if (!po_registry_open(po_config_text(config, "REGISTRY_URL"),
                          po_config_text(config, "REGISTRY_CA_FILE"), &registry, err))
        return po_wrap(err, "PAYONCE_REGISTRY_URL");
    return !self->check || self->check(config, err);
}

// What waiting alone does not mend.
static bool is_alarm(const po_err *err) {
    return po_pg_is_deployment(err) || strcmp(err->code, "certificate") == 0;
}

static bool open_witness(const po_config *config, po_witness **ret_witness, po_err *err) {
    rd_kafka_conf_t *conf = NULL;
    return make_conf(config, po_witness_settings, &conf, err) &&
           po_witness_open(&conf, ret_witness, err);
}

static bool open_loop(const po_config *config, const char *const *topics, po_batch *batch,
                      po_witness *witness, po_beat *beat, po_loop **ret_loop, po_err *err) {
    rd_kafka_conf_t *conf = NULL;
    if (!make_conf(config, po_loop_settings, &conf, err))
        return false;
    po_loop_options options = {.topics = topics,
                               .batch = (size_t)po_config_int(config, "BATCH"),
                               .blocked_retry_ms = BLOCKED_RETRY_MS,
                               .run = po_batch_run,
                               .is_alarm = is_alarm,
                               .is_too_much = po_batch_is_too_much,
                               .is_its_own = po_batch_is_its_own,
                               .arg = batch,
                               .witness = witness,
                               .positions = po_batch_positions(batch),
                               .recall = po_batch_recall,
                               .beat = beat};
    return po_loop_open(&options, &conf, ret_loop, err);
}

// What the brokers say of the topics, as it was last heard: a need (life/need.h), so that a topic
// that is not there, or not for us, is told and shown like all that is waited for, at the start and
// later. A window that is too short is an answer.
typedef struct window {
    rd_kafka_t *kafka;
    const char *const *topics;
    int64_t ms;
    pthread_mutex_t lock; // guards what follows
    bool known;           // one was heard
    po_err too_short;     // PO_REFUSED, or nothing
} window;

static bool ask_topics(void *arg, po_err *err) {
    window *w = arg;
    po_err why = {0};
    bool fine = po_retention_check(w->kafka, w->topics, w->ms, &why);
    if (!fine && why.kind != PO_REFUSED) {
        *err = why;
        return false;
    }
    pthread_mutex_lock(&w->lock);
    w->known = true;
    w->too_short = fine ? (po_err){0} : why;
    pthread_mutex_unlock(&w->lock);
    return true;
}

// True when it is known; ret_fine: whether it is long enough, else err says why.
static bool window_known(window *w, bool *ret_fine, po_err *err) {
    pthread_mutex_lock(&w->lock);
    bool known = w->known;
    *ret_fine = w->too_short.code[0] == 0;
    if (!*ret_fine)
        *err = w->too_short;
    pthread_mutex_unlock(&w->lock);
    return known;
}

static bool brokers_reached(void) {
    po_need_state all[PO_NEEDS_MOST];
    for (size_t n = po_needs_list(all, PO_NEEDS_MOST); n--;)
        if (strcmp(all[n].name, "kafka") == 0 && all[n].last_success_us)
            return true;
    return false;
}

// Waits for the brokers and their topics without limit; false when the window is too short. The
// topics are a need once there are brokers: who waits for these is not told two things.
static bool wait_for_window(window *w, po_need **ret_need, po_beat *beat, po_err *err) {
    bool fine = true;
    while (!po_stopping() && !window_known(w, &fine, err)) {
        po_beat_tick(beat);
        po_meter_show_waiting();
        if (!*ret_need && brokers_reached())
            *ret_need = po_need_new("topics", ask_topics, w);
        po_life_wait(LOOK_MS);
    }
    return fine;
}

static int64_t prune(po_batch *batch, int64_t keep_ms) {
    po_err err = {0};
    bool more = false;
    if (!po_batch_prune(batch, keep_ms, &more, &err))
        po_log_err(PO_WARN, "inbox not pruned, later again", &err);
    return more ? 0 : po_mono_ms() + PRUNE_EVERY_MS; // while there is more: after each batch
}

// A topic may be altered while we run. That is no reason to stop, but one to be told.
static int64_t look_at_window(window *w) {
    po_err err = {0};
    bool fine = true;
    (void)window_known(w, &fine, &err);
    if (!fine)
        po_log_err(PO_ERROR, "the inbox forgets events that may still be delivered", &err);
    po_gauge(po_meter.window, NULL, !fine);
    return po_mono_ms() + WINDOW_EVERY_MS;
}

static int64_t show_unread(po_witness *witness, const char *const *topics) {
    po_err err = {0};
    int64_t messages = 0;
    bool known = po_witness_lag(witness, topics, LAG_MS, &messages, &err);
    po_gauge(po_meter.unread, NULL, known ? (double)messages : NAN);
    return po_mono_ms() + LAG_EVERY_MS;
}

// The leader of a group shares out what it knows of the topics; one that does not know a topic for
// a moment, while a broker restarts, leaves it to nobody, and librdkafka (2.0.2) may never notice
// that it is back. Then the members join anew; only the leader's coming makes the group share out.
static int64_t look_for_left_out(po_loop *loop, po_witness *witness, const char *const *topics,
                                 int *times) {
    char group[128];
    po_err err = {0};
    bool left_out = false;
    snprintf(group, sizeof group, "payonce-%s", self->name);
    if (!po_witness_left_out(witness, group, topics, LAG_MS, &left_out, &err))
        left_out = false; // asked again
    *times = left_out ? *times + 1 : 0;
    if (*times == LEFT_OUT_TIMES) {
        *times = 0;
        po_log(PO_WARN, "partitions that no member reads: joining the group anew");
        if (!po_loop_join(loop, &err))
            po_log_err(PO_WARN, "not joined anew, later again", &err);
    }
    return po_mono_ms() + LEFT_OUT_EVERY_MS;
}

typedef struct chores { // when each is due
    int64_t prune_at, window_at, unread_at, left_out_at;
    int left_out; // times in a row
} chores;

// Between batches.
static void do_chores(chores *due, const po_config *config, po_batch *batch, po_loop *loop,
                      po_witness *witness, window *w) {
    int64_t now = po_mono_ms();
    if (now >= due->prune_at)
        due->prune_at = prune(batch, po_config_int(config, "INBOX_RETENTION"));
    if (now >= due->window_at)
        due->window_at = look_at_window(w);
    if (now >= due->unread_at)
        due->unread_at = show_unread(witness, w->topics);
    if (now >= due->left_out_at)
        due->left_out_at = look_for_left_out(loop, witness, w->topics, &due->left_out);
}

static bool ask_registry(void *registry, po_err *err) {
    return po_registry_ask(registry, err);
}

// A member that could do nothing would take partitions from those that can.
static bool wait_for_schema(po_beat *beat) {
    const char *missing = NULL;
    while (!po_stopping() && !po_needs_reached(&missing) && strcmp(missing, "database") == 0) {
        po_beat_tick(beat);
        po_meter_show_waiting();
        po_life_wait(LOOK_MS);
    }
    return !po_stopping();
}

static bool consume(const po_config *config, po_batch *batch, po_err *err) {
    const char *topics[MAX_TOPICS + 1];
    route_topics(topics);
    po_gauge(po_meter.unread, NULL, NAN);
    po_beat *beat = po_beat_new("consume", BEAT_LIMIT_MS);
    PO_AUTO(po_witness_close) po_witness *witness = NULL;
    po_loop *loop = NULL;
    PO_AUTO(po_registry_close) po_registry *registry = NULL; // apart from the batch's
    if (!po_registry_open(po_config_text(config, "REGISTRY_URL"),
                          po_config_text(config, "REGISTRY_CA_FILE"), &registry, err) ||
        !open_witness(config, &witness, err) ||
        !open_loop(config, topics, batch, witness, beat, &loop, err))
        return false;
    show_loop(loop);
    window w = {.kafka = po_loop_kafka(loop),
                .topics = topics,
                .ms = po_config_int(config, "INBOX_RETENTION"),
                .lock = PTHREAD_MUTEX_INITIALIZER};
    po_need *types = po_need_new("registry", ask_registry, registry);
    po_need *described = NULL;
    bool fine = wait_for_window(&w, &described, beat, err) &&
                (!wait_for_schema(beat) || po_loop_join(loop, err));
    po_ready_set(fine); // a member that gets no partition is ready too
    chores due = {.window_at = po_mono_ms() + WINDOW_EVERY_MS,
                  .left_out_at = po_mono_ms() + LEFT_OUT_EVERY_MS};
    while (fine && !po_stopping()) {
        fine = po_loop_turn(loop, err);
        if (fine && !po_stopping())
            do_chores(&due, config, batch, loop, witness, &w);
    }
    po_beat_end(beat);
    show_loop(NULL);
    po_need_end(types);
    po_need_end(described);
    po_loop_close(&loop);
    return fine;
}

static bool run(const po_config *config, po_err *err) {
    char application[128];
    snprintf(application, sizeof application, "payonce-%s", self->name);
    po_pg_options pg = {.dsn = po_config_text(config, "DSN"),
                        .application_name = application,
                        .lock_timeout_ms = LOCK_TIMEOUT_MS,
                        .by_index = true,
                        .statement_timeout_ms = STATEMENT_TIMEOUT_MS};
    po_batch *batch = NULL;
    if (!po_batch_open(self, po_config_text(config, "REGISTRY_URL"),
                       po_config_text(config, "REGISTRY_CA_FILE"), &pg, &batch, err))
        return false;
    void *state = NULL;
    bool fine = !self->start || self->start(config, &pg, &state, err);
    if (fine) {
        po_batch_state(batch, state);
        fine = consume(config, batch, err);
        if (self->stop)
            self->stop(state);
    }
    po_batch_close(&batch);
    return fine;
}

int po_consumer_main(int argc, char **argv, const po_consumer *consumer) {
    self = consumer;
    settings_add(settings_add(0, sdk_settings), consumer->settings);
    po_service service = {.name = consumer->name,
                          .about = consumer->about,
                          .settings = settings,
                          .migrations = consumer->migrations,
                          .admin = consumer->admin,
                          .declare_metrics = declare_metrics,
                          .check = check,
                          .show = po_kafka_show,
                          .run = run,
                          .status = status};
    int code = po_service_main(argc, argv, &service);
    free(settings);
    settings = NULL;
    return po_kafka_exit(code);
}
