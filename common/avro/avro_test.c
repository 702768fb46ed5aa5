// Avro binary against vectors that another implementation wrote (Python's fastavro 1.13), schema
// resolution by name, and hostile bytes: cut, changed and stuffed with huge lengths, each in a heap
// block of its exact size so that a read beyond it is seen.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include "avro/avro.h"
#include "base/cleanup.h"
#include <cmocka.h>

#define FIELD(name, type) "{\"name\":\"" name "\",\"type\":" type "}"
#define RECORD(name, fields) \
    "{\"type\":\"record\",\"name\":\"" name "\",\"namespace\":\"x\",\"fields\":[" fields "]}"
#define STATUS(symbols, more) \
    "{\"type\":\"enum\",\"name\":\"Status\",\"symbols\":[" symbols "]" more "}"

static const char paid_v1[] =
    RECORD("Paid", FIELD("id", "\"string\"") "," FIELD("amount", "\"int\"") "," FIELD(
                       "status", STATUS("\"PAID\",\"FAILED\"", "")));
static const char paid_v2[] =
    RECORD("Paid",
           FIELD("id", "\"string\"") "," FIELD(
               "amount",
               "\"long\"") ","
                           "{\"name\":\"currency\",\"type\":\"string\",\"default\":\"EUR\"}," FIELD(
                               "status", STATUS("\"PAID\",\"PENDING\",\"FAILED\"", "")));
static const char paid_v2_fallback[] =
    RECORD("Paid",
           FIELD("id", "\"string\"") "," FIELD(
               "amount",
               "\"long\"") ","
                           "{\"name\":\"currency\",\"type\":\"string\",\"default\":\"EUR\"}," FIELD(
                               "status", STATUS("\"PENDING\",\"PAID\",\"FAILED\"",
                                                ",\"default\":\"PENDING\"")));
static const char paid_v3[] =
    RECORD("Paid", FIELD("id", "\"string\"") "," FIELD("amount", "\"long\"") "," FIELD(
                       "status", STATUS("\"HELD\",\"FAILED\",\"PAID\"", "")));

static const char all_types[] = "{\"type\":\"record\",\"name\":\"All\",\"fields\":[" FIELD(
    "z",
    "\""
    "nu"
    "ll"
    "\"") "," FIELD("b",
                    "\"b"
                    "ool"
                    "ean"
                    "\"") "," FIELD("i",
                                    "\"int\"") "," FIELD("l",
                                                         "\"long\"") "," FIELD("s",
                                                                               "\"string\"") "," FIELD("y",
                                                                                                       "\"bytes"
                                                                                                       "\"") "," FIELD("e",
                                                                                                                       "{\"type\":"
                                                                                                                       "\"enum\","
                                                                                                                       "\"name\":\"E\","
                                                                                                                       "\"symbols\":["
                                                                                                                       "\"A\",\"B\","
                                                                                                                       "\"C\"]}") "," FIELD("u",
                                                                                                                                            "[\"null\",\"string\"]") "," FIELD("v",
                                                                                                                                                                               "[\"long\",\"null\"]") "]}";
static const char all_low[] =
    "01ffffffff0fffffffffffffffffff01247a61c5bcc3b3c582c48720e282acf09f98800400ff0402027202";
static const char all_high[] = "00feffffff0ffeffffffffffffffff0100000000008001";

// Every type a stranger may write; the reader wants three of the fields.
static const char wide[] =
    RECORD(
        "Wide",
        FIELD("head", "\"string\"") "," FIELD(
            "f", "\"float\"") "," FIELD("d", "\"double\"") "," FIELD("x", "{\"type\":\"fixed\",\"name\":"
                                                                          "\"Four\",\"size\":4}") "," FIELD("a", "{\"type\":\"array\",\"items\":\"string\"}") "," FIELD("m", "{\"type\":\"map\",\"values\":{\"type\":\"array\",\"items\":\"long\"}}") "," FIELD("n", "{\"type\":\"record\",\"name\":\"Outer\",\"namespace\":\"y\",\"fields\":[" FIELD("inner",
                                                                                                                                                                                                                                                                                                                                                      "{\"type\":\"record\",\"name\":\"Inner\",\"fields\":[" FIELD("on", "\"boolean\"") "," FIELD("kind",
                                                                                                                                                                                                                                                                                                                                                                                                                                                  "{\"type\":\"enum\",\"name\":\"Kind\",\"symbols\":[\"L\",\"R\"]}") "]}") "," FIELD("tag",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                     "[\"null\",\"bytes\"]") "]}") "," FIELD("u", "[\"null\",\"string\",\"y.Inner\"]") "," FIELD("y",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                 "\"bytes\"") "," FIELD("t",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                        "{\"type\":\"record\",\"name\":\"List\",\"fields\":[" FIELD("value",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                    "\"int\"") "," FIELD("next",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                         "[\"null\",\"List\"]") "]}") "," FIELD("z",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                "{\"type\":\"array\",\"items\":\"null\"}") "," FIELD("i", "{\"type\":\"int\",\"logicalType\":\"date\"}") "," FIELD("l",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                   "\"long\"") "," FIELD("e",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                         "\"y.Kind\"") "," FIELD("kept",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                 "\"int\"") "," FIELD("tail",
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                      "\"string\""));
static const char narrow[] =
    RECORD("Wide", FIELD("tail", "\"string\"") "," FIELD("kept", "[\"null\",\"long\"]") "," FIELD(
                       "head", "\"string\""));
static const char wide_plain[] = "02680000c03f00000000000002c00102030404027004717100"
                                 "04026b0402d70400026c0000" // the map: k [1, -300], l []
                                 "0102000400000400010202040006001211009a010274";
// The same with negative block counts, which are followed by the block's size.
static const char wide_sized[] = "02680000c03f00000000000002c001020304030a027004717100"
                                 "0314026b0402d70400026c0000"
                                 "01020004000004000102020400"
                                 "050000" // the array of nulls: three, in no bytes
                                 "1211009a010274";

typedef struct pair {
    po_avro_schema *writer, *reader;
    po_avro_resolver *resolver;
    po_arena *arena;
} pair;

static void pair_done(pair *p) {
    po_avro_resolver_free(&p->resolver);
    po_avro_free(&p->writer);
    po_avro_free(&p->reader);
    po_arena_free(&p->arena);
}

static bool pair_init(pair *p, const char *writer, const char *reader, po_err *err) {
    *p = (pair){.arena = po_arena_new()};
    assert_true(po_avro_parse(po_s(writer), &p->writer, err));
    assert_true(po_avro_parse(po_s(reader), &p->reader, err));
    return po_avro_resolver_new(p->writer, p->reader, &p->resolver, err);
}

// The bytes in a heap block of just their size.
static po_str block(po_str bytes) {
    char *p = malloc(bytes.n ? bytes.n : 1);
    if (bytes.n)
        memcpy(p, bytes.p, bytes.n);
    return (po_str){p, bytes.n};
}

static po_str unhex(po_arena *arena, const char *hex) {
    size_t n = strlen(hex) / 2;
    char *out = po_alloc(arena, n + 1);
    assert_true(po_unhex(po_s(hex), out, n));
    return (po_str){out, n};
}

static bool decode(const pair *p, po_str bytes, po_avro_value **ret, po_err *err) {
    po_str exact = block(bytes);
    bool ok = po_avro_decode(p->resolver, exact, p->arena, ret, err);
    free((char *)exact.p);
    return ok;
}

static po_avro_value *read_hex(const pair *p, const char *hex) {
    po_avro_value *values = NULL;
    po_err err = {0};
    if (!decode(p, unhex(p->arena, hex), &values, &err))
        fail_msg("%s: %s", err.code, err.text);
    return values;
}

static void refused(const pair *p, const char *hex, const char *code) {
    po_avro_value *values = NULL;
    po_err err = {0};
    assert_false(decode(p, unhex(p->arena, hex), &values, &err));
    assert_int_equal(err.kind, PO_REFUSED);
    assert_string_equal(err.code, code);
    assert_null(values);
}

static void is_text(const po_avro_value *value, const char *text) {
    assert_int_equal(value->type, PO_AVRO_STRING);
    assert_true(po_str_is(value->s, text));
}

// FAULTS 16: a reader's default, an enum by name although its index moved, int read as long.
static void test_evolution(void **state) {
    (void)state;
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, paid_v1, paid_v2, &err));
    po_avro_value *v = read_hex(&p, "066f2d310d02");
    is_text(&v[0], "o-1");
    assert_int_equal(v[1].i, -7);
    is_text(&v[2], "EUR");
    is_text(&v[3], "FAILED");
    v = read_hex(&p, "066f2d32feffffff0f00");
    assert_int_equal(v[1].i, INT32_MAX);
    is_text(&v[3], "PAID");
}

// FAULTS 16: an unknown symbol is the reader's default, or refused; never another symbol.
static void test_unknown_symbol(void **state) {
    (void)state;
    {
        PO_AUTO(pair_done) pair p;
        po_err err = {0};
        assert_true(pair_init(&p, paid_v3, paid_v2, &err));
        refused(&p, "066f2d3180808080804000", "avro_unresolvable");
        is_text(&read_hex(&p, "066f2d310d02")[3], "FAILED");
        refused(&p, "066f2d310d06", "avro_data"); // an index the writer does not have either
    }
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, paid_v3, paid_v2_fallback, &err));
    po_avro_value *v = read_hex(&p, "066f2d3180808080804000");
    is_text(&v[3], "PENDING");
    assert_int_equal(v[1].i, 1LL << 40);
}

static void test_all_types(void **state) {
    (void)state;
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, all_types, all_types, &err));
    po_avro_value *v = read_hex(&p, all_low);
    assert_int_equal(v[0].type, PO_AVRO_NULL);
    assert_true(v[1].b);
    assert_true(v[2].i == INT32_MIN && v[3].i == INT64_MIN);
    is_text(&v[4], "zażółć €😀");
    assert_int_equal(v[5].type, PO_AVRO_BYTES);
    assert_true(v[5].s.n == 2 && !memcmp(v[5].s.p, "\0\xff", 2));
    is_text(&v[6], "C");
    is_text(&v[7], "r");
    assert_int_equal(v[8].type, PO_AVRO_NULL);
    const char *hexes[] = {all_low, all_high};
    for (size_t i = 0; i < 2; i++) { // and written back, the bytes are the same
        PO_AUTO(po_buf_done) po_buf out = {0};
        po_buf_puts(&out, "behind");
        v = read_hex(&p, hexes[i]);
        assert_true(po_avro_encode(p.writer, v, 9, &out, &err));
        po_str body = {out.p + 6, out.n - 6};
        assert_true(po_str_eq(body, unhex(p.arena, hexes[i])));
    }
}

static void test_values_that_do_not_fit(void **state) {
    (void)state;
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, all_types, all_types, &err));
    const struct {
        size_t field;
        po_avro_value value;
    } cases[] = {
        {0, {.type = PO_AVRO_LONG}},
        {1, {.type = PO_AVRO_LONG, .i = 1}},
        {2, {.type = PO_AVRO_LONG, .i = INT32_MAX + 1LL}},
        {2, {.type = PO_AVRO_NULL}},
        {3, {.type = PO_AVRO_STRING, .s = po_s("1")}},
        {4, {.type = PO_AVRO_BYTES, .s = po_s("1")}},
        {4, {.type = PO_AVRO_STRING, .s = po_s("\xc0\x80")}},         // overlong
        {4, {.type = PO_AVRO_STRING, .s = po_s("\xed\xa0\x80")}},     // surrogate
        {4, {.type = PO_AVRO_STRING, .s = po_s("\xf4\x90\x80\x80")}}, // above U+10FFFF
        {4, {.type = PO_AVRO_STRING, .s = po_s("\xe2\x82")}},         // cut
        {5, {.type = PO_AVRO_STRING, .s = po_s("1")}},
        {6, {.type = PO_AVRO_STRING, .s = po_s("D")}},
        {7, {.type = PO_AVRO_LONG}},
        {8, {.type = PO_AVRO_BOOL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PO_AUTO(po_buf_done) po_buf out = {0};
        po_avro_value *v = read_hex(&p, all_low);
        v[cases[i].field] = cases[i].value;
        err = (po_err){0};
        assert_false(po_avro_encode(p.writer, v, 9, &out, &err));
        assert_int_equal(err.kind, PO_REFUSED);
        assert_string_equal(err.code, "avro_data");
        assert_int_equal(out.n, 0);
    }
}

// What the reader lacks is skipped, whatever its type; the order of fields is the writer's
// business.
static void test_skipping(void **state) {
    (void)state;
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, wide, narrow, &err));
    const char *hexes[] = {wide_plain, wide_sized};
    for (size_t i = 0; i < 2; i++) {
        po_avro_value *v = read_hex(&p, hexes[i]);
        is_text(&v[0], "t");
        assert_int_equal(v[1].i, 77);
        is_text(&v[2], "h");
    }
}

static const char only_kept[] = RECORD("Wide", FIELD("kept", "\"long\""));

static void test_hostile_counts(void **state) {
    (void)state;
    static const char nulls[] =
        RECORD("Wide",
               FIELD("z", "{\"type\":\"array\",\"items\":\"null\"}") "," FIELD("kept", "\"long\""));
    static const char deep[] = RECORD(
        "Wide", FIELD("t", "{\"type\":\"record\",\"name\":\"T\",\"fields\":[" FIELD(
                               "next", "[\"null\",\"T\"]") "]}") "," FIELD("kept", "\"long\""));
    static const char endless[] = RECORD(
        "Wide",
        FIELD("t", "{\"type\":\"record\",\"name\":\"T\",\"fields\":[" FIELD("a", "\"T\"") "," FIELD(
                       "b", "\"T\"") "]}") "," FIELD("kept", "\"long\""));
    const struct {
        const char *writer, *hex;
    } cases[] = {
        {nulls, "feffffffffffffffff010002"},         // 2^63 - 1 elements of no bytes
        {nulls, "ffffffffffffffffff01060002"},       // count -2^63, and a size beyond the end
        {nulls, "01feffffffffffffffff010002"},       // a block of 2^63 - 1 bytes
        {nulls, "0101000002"},                       // a block of -1 bytes
        {nulls, "feffffffffffffffffff0002"},         // more than 64 bits
        {nulls, "8080808080808080800202"},           // the 65th bit would be lost
        {nulls, "ffffffffffffffffffffffffffffff7f"}, // a number that does not end
        {endless, "02"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PO_AUTO(pair_done) pair p;
        po_err err = {0};
        assert_true(pair_init(&p, cases[i].writer, only_kept, &err));
        refused(&p, cases[i].hex, "avro_data");
    }
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, deep, only_kept, &err));
    assert_int_equal(read_hex(&p, "0202020202000a")[0].i, 5);
    char hex[2 * 4096 + 1];
    for (size_t i = 0; i < sizeof hex - 1; i++)
        hex[i] = i % 2 ? '2' : '0';
    hex[sizeof hex - 1] = 0;
    refused(&p, hex, "avro_data");
}

static void test_hostile_scalars(void **state) {
    (void)state;
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, paid_v1, paid_v1, &err));
    refused(&p, "", "avro_data");
    refused(&p, "066f2d310d0200", "avro_data"); // bytes behind the record
    refused(&p, "056f2d310d02", "avro_data");   // length -3
    refused(&p, "feffffffffffffffff010d02", "avro_data");
    refused(&p, "06eda0800d02", "avro_data");         // a surrogate is no UTF-8
    refused(&p, "066f2d31808080801002", "avro_data"); // 2^31 in an int
    refused(&p, "066f2d310d04", "avro_data");         // no such symbol
    refused(&p, "066f2d310d01", "avro_data");         // symbol -1
    PO_AUTO(pair_done) pair all;
    assert_true(pair_init(&all, all_types, all_types, &err));
    char *odd = po_printf(all.arena, "%s", all_low);
    odd[1] = '2';
    refused(&all, odd, "avro_data"); // a boolean of 2
    odd = po_printf(all.arena, "%.*s04", (int)strlen(all_high) - 6, all_high);
    refused(&all, odd, "avro_data"); // branch 2 of 2
}

#define ONE(type) RECORD("R", FIELD("a", type))

static void test_matching(void **state) {
    (void)state;
    const struct {
        const char *writer, *reader, *hex, *code; // code NULL: reads; hex NULL: no resolver
    } cases[] = {
        {ONE("\"int\""), ONE("\"long\""), "02", NULL},
        {ONE("\"long\""), ONE("\"int\""), NULL, "avro_unresolvable"},
        {ONE("\"int\""), ONE("\"string\""), NULL, "avro_unresolvable"},
        {ONE("\"float\""), ONE("\"long\""), NULL, "avro_unresolvable"},
        {ONE("\"float\""), ONE("\"float\""), NULL, "avro_schema"},
        {ONE("{\"type\":\"array\",\"items\":\"int\"}"), ONE("\"int\""), NULL, "avro_unresolvable"},
        {ONE("\"bytes\""), ONE("\"string\""), "0261", NULL},
        {ONE("\"bytes\""), ONE("\"string\""), "02ff", "avro_data"},
        {ONE("\"string\""), ONE("\"bytes\""), "0261", NULL},
        {ONE("\"string\""), ONE("[\"null\",\"string\"]"), "0261", NULL},
        {ONE("[\"null\",\"string\"]"), ONE("\"string\""), "020261", NULL},
        {ONE("[\"null\",\"string\"]"), ONE("\"string\""), "00", "avro_unresolvable"},
        {ONE("[\"null\",\"double\",\"int\"]"), ONE("[\"long\",\"null\"]"), "0402", NULL},
        {ONE("[\"double\",\"float\"]"), ONE("\"long\""), NULL, "avro_unresolvable"},
        {ONE(STATUS("\"A\"", "")), ONE("\"string\""), NULL, "avro_unresolvable"},
        {ONE(STATUS("\"A\"", "")),
         ONE("{\"type\":\"enum\",\"name\":\"Other\",\"symbols\":[\"A\"]}"), NULL,
         "avro_unresolvable"},
        {ONE("{\"type\":\"long\",\"logicalType\":\"timestamp-micros\"}"),
         ONE("{\"type\":\"long\",\"logicalType\":\"timestamp-millis\"}"), NULL,
         "avro_unresolvable"},
        {ONE("\"long\""), ONE("{\"type\":\"long\",\"logicalType\":\"timestamp-millis\"}"), "02",
         NULL},
        {ONE("\"long\""), RECORD("R", FIELD("b", "\"long\"")), NULL, "avro_unresolvable"},
        {ONE("\"long\""), RECORD("S", FIELD("a", "\"long\"")), NULL, "avro_unresolvable"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PO_AUTO(pair_done) pair p;
        po_err err = {0};
        bool ok = pair_init(&p, cases[i].writer, cases[i].reader, &err);
        assert_int_equal(ok, cases[i].hex != NULL);
        if (!ok)
            assert_string_equal(err.code, cases[i].code);
        else if (cases[i].code)
            refused(&p, cases[i].hex, cases[i].code);
        else
            read_hex(&p, cases[i].hex);
    }
}

static void test_defaults(void **state) {
    (void)state;
    static const char reader[] =
        RECORD("R", "{\"name\":\"s\",\"type\":\"string\",\"default\":\"\"},"
                    "{\"name\":\"n\",\"type\":[\"null\",\"string\"],\"default\":null},"
                    "{\"name\":\"y\",\"type\":\"bytes\",\"default\":\"a\\u00ff\"},"
                    "{\"name\":\"b\",\"type\":\"boolean\",\"default\":true},"
                    "{\"name\":\"i\",\"type\":\"int\",\"default\":-2},"
                    "{\"name\":\"u\",\"type\":[\"long\",\"null\"],\"default\":9007199254740993}");
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, RECORD("R", ""), reader, &err));
    po_avro_value *v = read_hex(&p, "");
    is_text(&v[0], "");
    assert_int_equal(v[1].type, PO_AVRO_NULL);
    assert_true(v[2].s.n == 2 && !memcmp(v[2].s.p, "a\xff", 2));
    assert_true(v[3].b);
    assert_int_equal(v[4].i, -2);
    assert_true(v[5].i == 9007199254740993);
    static const char *const wrong[] = {
        RECORD("R", "{\"name\":\"a\",\"type\":\"string\",\"default\":1.5}"),
        RECORD("R", "{\"name\":\"a\",\"type\":\"long\",\"default\":\"1\"}"),
        RECORD("R", "{\"name\":\"a\",\"type\":\"int\",\"default\":2147483648}"),
        RECORD("R", "{\"name\":\"a\",\"type\":[\"null\",\"long\"],\"default\":0}"),
        RECORD("R", "{\"name\":\"a\",\"type\":\"bytes\",\"default\":\"\\u0100\"}"),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        PO_AUTO(pair_done) pair bad;
        assert_false(pair_init(&bad, RECORD("R", ""), wrong[i], &err));
        assert_string_equal(err.code, "avro_unresolvable");
    }
}

static void test_schemas(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "",
        "{",
        "\"string\"",
        "[\"null\"]",
        "{\"type\":\"record\"}",
        "{\"type\":\"record\",\"name\":\"R\"}",
        RECORD("R", "{\"name\":\"a\"}"),
        RECORD("R", "{\"type\":\"long\"}"),
        RECORD("R", FIELD("a", "\"lon\"")),
        RECORD("R", FIELD("a", "\"y.R\"")),
        RECORD("R", FIELD("a", "\"long\"") "," FIELD("a", "\"long\"")),
        RECORD("R", FIELD("a b", "\"long\"")),
        RECORD("R", FIELD("1", "\"long\"")),
        RECORD("R", FIELD("a", "[\"null\",[\"long\"]]")),
        RECORD("R", FIELD("a", "{\"type\":\"array\"}")),
        RECORD("R", FIELD("a", "{\"type\":\"fixed\",\"name\":\"F\",\"size\":-1}")),
        RECORD("R", FIELD("a", "{\"type\":\"fixed\",\"name\":\"R\",\"size\":1}")),
        RECORD("R", FIELD("a", STATUS("\"A\",\"A\"", ""))),
        RECORD("R", FIELD("a", STATUS("\"A\"", ",\"default\":\"B\""))),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        po_avro_schema *schema = NULL;
        po_err err = {0};
        if (po_avro_parse(po_s(wrong[i]), &schema, &err))
            fail_msg("taken: %s", wrong[i]);
        assert_int_equal(err.kind, PO_REFUSED);
        assert_string_equal(err.code, "avro_schema");
        assert_null(schema);
    }
    PO_AUTO(po_buf_done) po_buf vast = {0}; // more than anybody would write by hand
    po_buf_puts(&vast, paid_v2);
    while (vast.n <= 128 << 10)
        po_buf_puts(&vast, "        ");
    PO_AUTO(po_avro_free) po_avro_schema *schema = NULL;
    po_err err = {0};
    assert_false(po_avro_parse(po_buf_view(&vast), &schema, &err));
    assert_string_equal(err.code, "avro_schema");
    assert_true(po_avro_parse(po_s(paid_v2), &schema, &err));
    uint8_t sha[32];
    po_sha256(po_s(paid_v2), sha);
    assert_memory_equal(po_avro_fingerprint(schema), sha, 32);
    assert_true(po_str_is(po_avro_text(schema), paid_v2));
    assert_int_equal(po_avro_field(schema, "currency"), 2);
    assert_int_equal(po_avro_field(schema, "Currency"), -1);
}

// Reads the bytes and, when they were taken, everything that came out of them.
static unsigned long probe(const pair *p, po_str bytes, size_t n_values) {
    po_avro_value *v = NULL;
    po_err err = {0};
    unsigned long sum = 0;
    if (!decode(p, bytes, &v, &err)) {
        assert_int_equal(err.kind, PO_REFUSED);
        return 0;
    }
    for (size_t i = 0; i < n_values; i++)
        for (size_t k = 0; v[i].type >= PO_AVRO_STRING && k < v[i].s.n; k++)
            sum += (unsigned char)v[i].s.p[k];
    return sum + 1;
}

// Every cut, every byte changed in several ways, and huge numbers put in everywhere: refused or
// read, no more.
static void mutate(const char *writer, const char *reader, size_t n_values, const char *hex) {
    static const char *const stuffing[] = {"feffffffffffffffff01",
                                           "ffffffffffffffffff01",
                                           "80808080808080808080",
                                           "ffffffff0f",
                                           "01",
                                           ""};
    PO_AUTO(pair_done) pair p;
    po_err err = {0};
    assert_true(pair_init(&p, writer, reader, &err));
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    po_str whole = unhex(arena, hex);
    assert_true(probe(&p, whole, n_values) > 0);
    for (size_t at = 0; at < whole.n; at++) {
        assert_int_equal(probe(&p, (po_str){whole.p, at}, n_values), 0);
        for (unsigned change = 1; change < 256; change++) {
            char *byte = (char *)whole.p + at, was = *byte;
            *byte = (char)(was ^ (char)change);
            probe(&p, whole, n_values);
            *byte = was;
        }
        for (size_t i = 0; i < sizeof stuffing / sizeof *stuffing; i++) {
            PO_AUTO(po_buf_done) po_buf stuffed = {0};
            po_str more = unhex(arena, stuffing[i]);
            po_buf_put(&stuffed, whole.p, at);
            po_buf_put(&stuffed, more.p, more.n);
            po_buf_put(&stuffed, whole.p + at + 1, whole.n - at - 1);
            probe(&p, po_buf_view(&stuffed), n_values);
        }
        po_arena_reset(p.arena);
    }
}

static void test_mutations(void **state) {
    (void)state;
    mutate(paid_v1, paid_v2, 4, "066f2d310d02");
    mutate(all_types, all_types, 9, all_low);
    mutate(all_types, all_types, 9, all_high);
    mutate(wide, narrow, 3, wide_plain);
    mutate(wide, narrow, 3, wide_sized);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evolution),       cmocka_unit_test(test_unknown_symbol),
        cmocka_unit_test(test_all_types),       cmocka_unit_test(test_values_that_do_not_fit),
        cmocka_unit_test(test_skipping),        cmocka_unit_test(test_hostile_counts),
        cmocka_unit_test(test_hostile_scalars), cmocka_unit_test(test_matching),
        cmocka_unit_test(test_defaults),        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
