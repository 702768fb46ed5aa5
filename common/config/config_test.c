#include "config/config.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdlib.h>
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
    {"TOKEN", PO_SET_SECRET, "", 0, 32, "A token."},
    {"CERT", PO_SET_PATH, "", 0, 0, "A file."},
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
    static const char *const names[] = {"NAME",      "DSN",   "THREADS", "ANY",        "VERBOSE",
                                        "RETENTION", "LIMIT", "TOKEN",   "TOKEN_FILE", "CERT"};
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
    po_config_print(config, out);
    fclose(out);
    assert_null(strstr(text, "s3cret"));
    assert_non_null(strstr(
        text, "{\"name\":\"PAYONCE_TOKEN\",\"value\":\"(set)\",\"source\":\"environment\"}\n"));
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
    assert_non_null(strstr(text, "| `PAYONCE_TOKEN_FILE` | secret file |  | | A token. |\n"));
    free(text);
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
        cmocka_unit_test_setup(printing_never_shows_a_secret, clear),
        cmocka_unit_test_setup(the_table_prints_as_documentation, clear),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(file);
    return failed;
}
