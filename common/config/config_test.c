#include "config/config.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static const po_setting table[] = {
    {"NAME", PO_SET_TEXT, "shop", 0, 8, "A name."},
    {"DSN", PO_SET_TEXT, NULL, 0, 0, "Where."},
    {"THREADS", PO_SET_INT, "2", 1, 64, "Threads."},
    {"ANY", PO_SET_INT, "0", 0, 0, "Any number."},
    {"VERBOSE", PO_SET_BOOL, "false", 0, 0, "Talk."},
    {"RETENTION", PO_SET_DURATION_MS, "24h", 7200000, 34560000000, "How long."},
    {"LIMIT", PO_SET_BYTES, "16MiB", 1, 1 << 30, "How much."},
    {"TOKEN", PO_SET_SECRET, "", 3, 32, "A token."},
    {"CERT", PO_SET_PATH, "", 0, 0, "A file."},
    {"LISTEN", PO_SET_LISTEN, "127.0.0.1:0", 0, 0, "A door."},
    {0},
};

static char file[] = "/tmp/po_config_test.XXXXXX";

static void write_file(const void *bytes, size_t n) {
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static int clear(void **state) {
    (void)state;
    static const char *const names[] = {"NAME",       "DSN",       "THREADS", "ANY",
                                        "VERBOSE",    "RETENTION", "LIMIT",   "TOKEN",
                                        "TOKEN_FILE", "CERT",      "LISTEN"};
    char variable[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(variable, sizeof variable, "PAYONCE_%s", names[i]);
        unsetenv(variable);
    }
    setenv("PAYONCE_DSN", "host=db", 1);
    return 0;
}

static void defaults_come_from_the_table(void **state) {
    (void)state;
    po_config *config = NULL;
    po_err err = {0};
    assert_true(po_config_load(table, &config, &err));
    assert_string_equal(po_config_text(config, "NAME"), "shop");
    assert_string_equal(po_config_text(config, "DSN"), "host=db");
    assert_string_equal(po_config_text(config, "TOKEN"), "");
    assert_string_equal(po_config_text(config, "CERT"), "");
    assert_int_equal(po_config_int(config, "THREADS"), 2);
    assert_int_equal(po_config_int(config, "VERBOSE"), 0);
    assert_int_equal(po_config_int(config, "RETENTION"), 86400000);
    assert_int_equal(po_config_int(config, "LIMIT"), 16 << 20);
    po_config_free(&config);
    assert_null(config);
    po_config_free(&config);
}

static void values_are_read_strictly(void **state) {
    static const struct {
        const char *name, *text;
        int64_t want; // -1: refused
    } rows[] = {
        {"THREADS", "1", 1},
        {"THREADS", "64", 64},
        {"THREADS", "0", -1},
        {"THREADS", "65", -1},
        {"THREADS", "", -1},
        {"THREADS", "4x", -1},
        {"THREADS", "04", -1},
        {"ANY", "9223372036854775807", INT64_MAX},
        {"ANY", "9223372036854775808", -1},
        {"VERBOSE", "true", 1},
        {"VERBOSE", "false", 0},
        {"VERBOSE", "1", -1},
        {"VERBOSE", "True", -1},
        {"RETENTION", "7200000ms", 7200000},
        {"RETENTION", "7200s", 7200000},
        {"RETENTION", "120m", 7200000},
        {"RETENTION", "2h", 7200000},
        {"RETENTION", "400d", 34560000000},
        {"RETENTION", "401d", -1},
        {"RETENTION", "1h", -1},
        {"RETENTION", "7200000", -1},
        {"RETENTION", "2 h", -1},
        {"RETENTION", "-2h", -1},
        {"RETENTION", "h", -1},
        {"RETENTION", "106751991168d", -1},
        {"LIMIT", "4096", 4096},
        {"LIMIT", "64KiB", 65536},
        {"LIMIT", "16MiB", 16 << 20},
        {"LIMIT", "1GiB", 1 << 30},
        {"LIMIT", "2GiB", -1},
        {"LIMIT", "64kB", -1},
        {"LIMIT", "0", -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        clear(state);
        char variable[64];
        snprintf(variable, sizeof variable, "PAYONCE_%s", rows[i].name);
        setenv(variable, rows[i].text, 1);
        po_config *config = NULL;
        po_err err = {0};
        bool ok = po_config_load(table, &config, &err);
        if (ok != (rows[i].want >= 0))
            fail_msg("%s=%s", rows[i].name, rows[i].text);
        if (ok) {
            assert_int_equal(po_config_int(config, rows[i].name), rows[i].want);
        } else {
            assert_int_equal(err.kind, PO_REFUSED);
            assert_string_equal(err.code, "setting");
            assert_non_null(strstr(err.text, variable));
        }
        po_config_free(&config);
    }
}

static void faults_are_cut_between_lines(void **state) {
    (void)state;
    enum { MANY = 20 };
    static const char line[] = "PAYONCE_REQUIRED_SETTING_00 is required\n";
    char names[MANY][32];
    po_setting many[MANY + 1] = {0};
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "REQUIRED_SETTING_%02d", i);
        many[i] = (po_setting){names[i], PO_SET_TEXT, NULL, 0, 0, "One of many."};
    }
    po_config *config = NULL;
    po_err err = {0};
    assert_false(po_config_load(many, &config, &err));
    size_t whole = strlen(err.text) / (sizeof line - 1) * (sizeof line - 1);
    assert_true(whole > 400 && err.text[whole - 1] == '\n');
    assert_string_equal(err.text + whole, "more settings are at fault");
    many[10] = (po_setting){0}; // these just fit
    assert_false(po_config_load(many, &config, &err));
    assert_null(strstr(err.text, "more settings"));
    assert_non_null(strstr(err.text, "SETTING_09 is required"));
}

static void every_fault_is_named_at_once(void **state) {
    (void)state;
    unsetenv("PAYONCE_DSN");
    setenv("PAYONCE_THREADS", "many", 1);
    setenv("PAYONCE_NAME", "far too long", 1);
    setenv("PAYONCE_CERT", "/nowhere/cert.pem", 1);
    setenv("PAYONCE_RETENTION", "1h", 1);
    po_config *config = NULL;
    po_err err = {0};
    assert_false(po_config_load(table, &config, &err));
    assert_null(config);
    assert_string_equal(err.text, "PAYONCE_NAME is longer than 8 bytes\n"
                                  "PAYONCE_DSN is required\n"
                                  "PAYONCE_THREADS is not a whole number\n"
                                  "PAYONCE_RETENTION is outside 2h to 400d\n"
                                  "PAYONCE_CERT: cannot read the file: No such file or directory");
}

static void secrets_come_from_files(void **state) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *want; // NULL: refused
    } rows[] = {
        {"s3cret", 6, "s3cret"},
        {"s3cret\n", 7, "s3cret"},
        {"s3cret\r\n", 8, "s3cret"},
        {"s3cret\n\n", 8, "s3cret\n"},
        {" s ", 3, " s "},
        {"", 0, NULL},
        {"\n", 1, NULL},
        {"a\0b", 3, NULL},
        {"ab", 2, NULL},
        {"12345678901234567890123456789012\n", 33, "12345678901234567890123456789012"},
        {"123456789012345678901234567890123", 33, NULL},
        {"12345678901234567890123456789012345678901234567890", 50, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        clear(state);
        write_file(rows[i].bytes, rows[i].n);
        setenv("PAYONCE_TOKEN_FILE", file, 1);
        po_config *config = NULL;
        po_err err = {0};
        assert_int_equal(po_config_load(table, &config, &err), rows[i].want != NULL);
        if (rows[i].want)
            assert_string_equal(po_config_text(config, "TOKEN"), rows[i].want);
        else
            assert_non_null(strstr(err.text, "PAYONCE_TOKEN"));
        po_config_free(&config);
    }
}

// Kubernetes shows a secret as a link; one in a FIFO would be waited for without an end.
static void a_secret_is_a_regular_file(void **state) {
    (void)state;
    char link[sizeof file + 8], fifo[sizeof file + 8];
    snprintf(link, sizeof link, "%s.link", file);
    snprintf(fifo, sizeof fifo, "%s.fifo", file);
    write_file("s3cret", 6);
    assert_int_equal(symlink(file, link), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    po_config *config = NULL;
    po_err err = {0};
    setenv("PAYONCE_TOKEN_FILE", link, 1);
    assert_true(po_config_load(table, &config, &err));
    po_config_free(&config);
    setenv("PAYONCE_TOKEN_FILE", fifo, 1);
    assert_false(po_config_load(table, &config, &err));
    assert_non_null(strstr(err.text, "PAYONCE_TOKEN_FILE: cannot read the file"));
    unlink(link);
    unlink(fifo);
}

static void an_address_that_is_needed_is_not_empty(void **state) {
    (void)state;
    po_config *config = NULL;
    po_err err = {0};
    setenv("PAYONCE_LISTEN", "", 1);
    assert_false(po_config_load(table, &config, &err));
    assert_non_null(strstr(err.text, "PAYONCE_LISTEN is not an address"));
}

static void a_secret_in_the_environment_is_refused(void **state) {
    (void)state;
    po_config *config = NULL;
    po_err err = {0};
    setenv("PAYONCE_TOKEN", "s3cret", 1);
    assert_false(po_config_load(table, &config, &err));
    assert_null(strstr(err.text, "s3cret"));
    unsetenv("PAYONCE_TOKEN");
    setenv("PAYONCE_TOKEN_FILE", "/nowhere/token", 1);
    assert_false(po_config_load(table, &config, &err));
    assert_non_null(strstr(err.text, "PAYONCE_TOKEN_FILE"));
    static const po_setting needed[] = {{"TOKEN", PO_SET_SECRET, NULL, 0, 0, "A token."}, {0}};
    unsetenv("PAYONCE_TOKEN_FILE");
    assert_false(po_config_load(needed, &config, &err));
    assert_string_equal(err.text, "PAYONCE_TOKEN_FILE is required");
}

static void printing_never_shows_a_secret(void **state) {
    (void)state;
    write_file("s3cret", 6);
    setenv("PAYONCE_TOKEN_FILE", file, 1);
    setenv("PAYONCE_NAME", "a\"b", 1);
    po_config *config = NULL;
    assert_true(po_config_load(table, &config, NULL));
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    po_config_print(config, NULL, out);
    fclose(out);
    assert_null(strstr(text, "s3cret"));
    assert_non_null(strstr(
        text,
        "{\"name\":\"PAYONCE_TOKEN_FILE\",\"value\":\"(set)\",\"source\":\"environment\"}\n"));
    assert_non_null(strstr(
        text, "{\"name\":\"PAYONCE_RETENTION\",\"value\":\"24h\",\"source\":\"default\"}\n"));
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        json_decref(object);
    }
    free(text);
    po_config_free(&config);
}

static void the_table_prints_as_documentation(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    po_config_markdown(table, out);
    fclose(out);
    assert_non_null(strstr(text, "| `PAYONCE_DSN` | text |  | required | Where. |\n"));
    assert_non_null(strstr(text, "| `PAYONCE_THREADS` | number | 1 to 64 | `2` | Threads. |\n"));
    assert_non_null(
        strstr(text, "| `PAYONCE_RETENTION` | duration | 2h to 400d | `24h` | How long. |\n"));
    assert_non_null(strstr(text, "| `PAYONCE_LIMIT` | size | 1 to 1GiB | `16MiB` | How much. |\n"));
    assert_non_null(
        strstr(text, "| `PAYONCE_TOKEN_FILE` | secret file | 3 to 32 bytes | | A token. |\n"));
    free(text);
}

// ---- addresses ----

// One setting of this type; empty when nothing is at fault.
static void load_one(po_setting_type type, const char *text, po_err *err) {
    const po_setting one[] = {{"NAME", type, "", 0, 0, "It."}, {0}};
    po_config *config = NULL;
    *err = (po_err){0};
    setenv("PAYONCE_NAME", text, 1);
    if (po_config_load(one, &config, err))
        assert_string_equal(po_config_text(config, "NAME"), text);
    po_config_free(&config);
}

// FAULTS 66: an address that no listener or client could use is refused with the settings.
static void addresses_are_checked(void **state) {
    (void)state;
    static const struct {
        po_setting_type type;
        const char *text;
        bool ok;
    } rows[] = {
        {PO_SET_LISTEN, "127.0.0.1:0", true},
        {PO_SET_LISTEN, "0.0.0.0:65535", true},
        {PO_SET_LISTEN, "[::1]:8080", true},
        {PO_SET_LISTEN, "", true}, // whether it may be empty is said by the default
        {PO_SET_LISTEN, ":8080", false},
        {PO_SET_LISTEN, "8080", false},
        {PO_SET_LISTEN, "127.0.0.1", false},
        {PO_SET_LISTEN, "127.0.0.1:", false},
        {PO_SET_LISTEN, "127.0.0.1:65536", false},
        {PO_SET_LISTEN, "127.0.0.1:-1", false},
        {PO_SET_LISTEN, "127.0.0.1:http", false},
        {PO_SET_LISTEN, "localhost:8080", false},
        {PO_SET_LISTEN, "::1:8080", false},
        {PO_SET_LISTEN, "[::1:8080", false},
        {PO_SET_LISTEN, "[hunter2]:8080", false},
        {PO_SET_SERVERS, "kafka:9092", true},
        {PO_SET_SERVERS, "kafka-0.kafka:9092,10.0.0.1:9092,[fd00::1]:9092", true},
        {PO_SET_SERVERS, "kafka", false},
        {PO_SET_SERVERS, "kafka:0", false},
        {PO_SET_SERVERS, "kafka:9092,", false},
        {PO_SET_SERVERS, ",kafka:9092", false},
        {PO_SET_SERVERS, "kafka:9092, kafka:9093", false},
        {PO_SET_SERVERS, "https://kafka:9092", false},
        {PO_SET_URL, "http://registry", true},
        {PO_SET_URL, "https://registry:8081/apis/ccompat/v7", true},
        {PO_SET_URL, "https://me:hunter2@registry:8081", true},
        {PO_SET_URL, "https://[fd00::1]:8081/", true},
        {PO_SET_URL, "registry:8081", false},
        {PO_SET_URL, "https://", false},
        {PO_SET_URL, "https:///path", false},
        {PO_SET_URL, "https://registry:http", false},
        {PO_SET_URL, "https://registry:99999", false},
        {PO_SET_URL, "https://registry /", false},
        {PO_SET_URL, "https://me:hunt/er2@registry", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_err err;
        load_one(rows[i].type, rows[i].text, &err);
        if (rows[i].ok != !*err.text)
            fail_msg("%s: %s", rows[i].text, err.text);
        assert_null(strstr(err.text, "hunter2"));
        assert_int_equal(!*err.text, !strstr(err.text, "PAYONCE_NAME "));
    }
}

// FAULTS 60: a URL is printed without what may be a secret.
static void a_url_is_shown_without_its_secrets(void **state) {
    (void)state;
    static const po_setting one[] = {{"NAME", PO_SET_URL, "", 0, 0, "It."}, {0}};
    static const char *const rows[][2] = {
        {"https://me:hunter2@registry:8081/a?key=hunter2", "https://***@registry:8081/a?***"},
        {"http://registry/a", "http://registry/a"},
        {"https://hunter2@registry#hunter2", "https://***@registry#***"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv("PAYONCE_NAME", rows[i][0], 1);
        po_config *config = NULL;
        assert_true(po_config_load(one, &config, NULL));
        char *text = NULL;
        size_t n = 0;
        FILE *out = open_memstream(&text, &n);
        po_config_print(config, NULL, out);
        fclose(out);
        json_t *line = json_loads(text, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(line, "value")), rows[i][1]);
        json_decref(line);
        free(text);
        po_config_free(&config);
    }
}

// ---- names ----

// FAULTS 66: a slip of the pen is named, with the name that was meant; an old name or a guessed one with
// those that speak of the same.
static void strangers_are_named(void **state) {
    (void)state;
    static const struct {
        const char *entry, *other;
        const char *like; // NULL: no stranger; "": nothing is like it
    } rows[] = {
        {"PAYONCE_THREADS=2", "", NULL},
        {"PAYONCE_TOKEN_FILE=/x", "", NULL},
        {"PAYONCE_WRITERS=4", "", NULL}, // another program's
        {"PAYONCE_DSN_FILE=/x", "", NULL},
        {"PAYONCE_KAFKA_SETTINGS_FILE=/x", "", NULL},
        {"HOME=/x", "", NULL},
        {"PAYONCE_WRITRS=4", "", "PAYONCE_WRITERS"},
        {"PAYONCE_THREADSS=4", "", "PAYONCE_THREADS"},
        {"PAYONCE_threads=4", "", "PAYONCE_THREADS"},
        {"PAYONCE_LSITEN=:1", "", "PAYONCE_LISTEN"},
        {"PAYONCE_SMTP_PASSWORD=hunter2", "", "PAYONCE_SMTP_PASSWORD_FILE"},
        {"PAYONCE_KAFKA_EXTRA=a=b", "", "PAYONCE_KAFKA_BROKERS, PAYONCE_KAFKA_SETTINGS_FILE"},
        {"PAYONCE_BROKERS=a:1", "", "PAYONCE_KAFKA_BROKERS"},
        {"PAYONCE_INGEST_WRITERS=2", "", "PAYONCE_WRITERS"},
        {"PAYONCE_WHATEVER=2", "", ""},
        {"PAYONCE_=1", "", ""},
        {"PAYONCE_A\n\033[2J\303\251=1", "", ""},
        // What Kubernetes sets for a service named payonce-ingest, and for one named payonce.
        {"PAYONCE_INGEST_PORT=tcp://10.0.0.1:8080", "PAYONCE_INGEST_SERVICE_HOST=10.0.0.1", NULL},
        {"PAYONCE_INGEST_PORT_8080_TCP_ADDR=10.0.0.1", "PAYONCE_INGEST_SERVICE_HOST=10.0.0.1",
         NULL},
        {"PAYONCE_INGEST_SERVICE_PORT_HTTP=8080", "PAYONCE_INGEST_SERVICE_HOST=10.0.0.1", NULL},
        {"PAYONCE_SERVICE_HOST=10.0.0.1", "", NULL},
        {"PAYONCE_PORT=tcp://10.0.0.1:8080", "PAYONCE_SERVICE_HOST=10.0.0.1", NULL},
        {"PAYONCE_INGEST_PORT=8080", "", ""},
        {"PAYONCE_OTHER_PORT=8080", "PAYONCE_INGEST_SERVICE_HOST=10.0.0.1", ""},
        {"PAYONCE_INGEST_PORTS=8080", "PAYONCE_INGEST_SERVICE_HOST=10.0.0.1", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_buf faults = {0};
        po_config_strangers((const po_setting *const[]){table, NULL},
                            (const char *const[]){rows[i].entry, rows[i].other, NULL}, &faults);
        char end[128] = "";
        if (rows[i].like)
            snprintf(end, sizeof end, " is no setting; %s%s\n",
                     *rows[i].like ? "names like it: " : "docs/settings.md lists them",
                     rows[i].like);
        if (!rows[i].like != !faults.n || (faults.n && !strstr(faults.p, end)))
            fail_msg("%s: %s", rows[i].entry, faults.n ? faults.p : "");
        if (faults.n)
            assert_null(strstr(faults.p, "hunter2"));
        for (size_t c = 0; c + 1 < faults.n; c++) // one line, and nothing a terminal obeys
            assert_in_range((unsigned char)faults.p[c], ' ', '~');
        po_buf_done(&faults);
    }
}

int main(void) {
    int fd = mkstemp(file);
    if (fd < 0)
        return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_come_from_the_table, clear),
        cmocka_unit_test_setup(values_are_read_strictly, clear),
        cmocka_unit_test_setup(every_fault_is_named_at_once, clear),
        cmocka_unit_test_setup(faults_are_cut_between_lines, clear),
        cmocka_unit_test_setup(secrets_come_from_files, clear),
        cmocka_unit_test_setup(a_secret_in_the_environment_is_refused, clear),
        cmocka_unit_test_setup(a_secret_is_a_regular_file, clear),
        cmocka_unit_test_setup(an_address_that_is_needed_is_not_empty, clear),
        cmocka_unit_test_setup(printing_never_shows_a_secret, clear),
        cmocka_unit_test_setup(the_table_prints_as_documentation, clear),
        cmocka_unit_test_setup(addresses_are_checked, clear),
        cmocka_unit_test_setup(a_url_is_shown_without_its_secrets, clear),
        cmocka_unit_test_setup(strangers_are_named, clear),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(file);
    return failed;
}
