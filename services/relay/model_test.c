// gaps, keys and the checkpoint together, as the relay uses them, against a model of all that surrounds them: writers
// (ids drawn before commit, a table lock from before the draw until after the commit, savepoints, prepared
// transactions), Kafka (acknowledges in any order, or not), retention, restarts of the server, and relays that die or
// go on for a while after they were overtaken. What must hold is asked of the whole table after each step that could
// break it. `relay_model_test N` runs N seeds.
#include "cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { WRITERS = 10, KEYS = 16, STEPS = 6000, ROWS = 2 * STEPS, IN_FLIGHT = 400, OPEN = 4000 };

static struct topic *const T = (struct topic *)0x1000;
static int n_seeds = 25;

typedef enum fate { NEVER, PENDING, COMMITTED, ROLLED_BACK } fate;

typedef struct table_row {
    fate fate;
    int key;
    bool acked, deleted;
    int read_by; // epoch
} table_row;

typedef struct writer {
    bool active, locked, prepared; // locked: holds the outbox's lock
    uint64_t vtx;
    int key; // whose row lock it holds
    int64_t ids[4];
    int n;
} writer;

typedef struct checkpoint_row {
    int64_t floor;
    int64_t lo[OPEN], hi[OPEN];
    size_t n;
    int epoch;
} checkpoint_row;

typedef struct life { // of a relay
    int epoch;        // 0: none
    gaps *gaps;
    keys *keys;
    key *ready[IN_FLIGHT], *sent[IN_FLIGHT];
    size_t n_ready, n_sent;
} life;

typedef struct model {
    table_row rows[ROWS];
    int64_t last; // id
    writer writers[WRITERS];
    uint64_t next_vtx;
    checkpoint_row cursor;
    life lives[2]; // the active one, and one that does not know that it was overtaken
    int64_t now_ms;
    int64_t acked, deleted, deaths; // of rows, of rows, of relays
    po_arena *arena;
    unsigned seed;
} model;

static int dice(model *m, int sides) {
    return rand_r(&m->seed) % sides;
}

// --- Writers

static bool key_locked(const model *m, int key) {
    for (int i = 0; i < WRITERS; i++)
        if (m->writers[i].active && m->writers[i].key == key)
            return true;
    return false;
}

static void end_writer(model *m, writer *w, bool commit) {
    for (int i = 0; i < w->n; i++)
        if (m->rows[w->ids[i]].fate == PENDING)
            m->rows[w->ids[i]].fate = commit ? COMMITTED : ROLLED_BACK;
    *w = (writer){0};
}

static void step_writer(model *m, writer *w) {
    if (!w->active) {
        int key = dice(m, KEYS);
        if (!key_locked(m, key)) // else it waits for the row lock
            *w = (writer){.active = true, .vtx = m->next_vtx++, .key = key};
    } else if (w->prepared) {
        if (dice(m, 10) == 0)
            end_writer(m, w, dice(m, 3) > 0);
    } else if (!w->locked) {
        w->locked = true;
    } else if (w->n < 4 && dice(m, 3) > 0) {
        int64_t id = ++m->last;
        m->rows[id] = (table_row){.fate = PENDING, .key = w->key};
        w->ids[w->n++] = id;
    } else if (w->n > 0 && dice(m, 8) == 0) {
        int kept = dice(m, w->n); // to a savepoint
        for (int i = kept; i < w->n; i++)
            m->rows[w->ids[i]].fate = ROLLED_BACK;
        w->n = kept;
        w->locked =
            kept > 0 || dice(m, 2); // the lock goes too where it was taken behind the savepoint
    } else if (dice(m, 12) == 0) {
        w->prepared = true;
    } else {
        end_writer(m, w, dice(m, 100) >= 20);
    }
}

// --- The relay's loop, in short

static bool is_open(const checkpoint_row *c, int64_t id) {
    for (size_t i = 0; i < c->n; i++)
        if (c->lo[i] <= id && id <= c->hi[i])
            return true;
    return id > c->floor;
}

static void life_end(life *l) {
    gaps_free(&l->gaps);
    keys_free(&l->keys);
    *l = (life){0};
}

static void life_begin(model *m, life *l) {
    *l = (life){.epoch = ++m->cursor.epoch, .gaps = gaps_new(m->cursor.floor), .keys = keys_new()};
    for (size_t i = 0; i < m->cursor.n; i++)
        gaps_restore(l->gaps, m->cursor.lo[i], m->cursor.hi[i]);
}

static void look(model *m, life *l) {
    int64_t ids[64];
    size_t limit = (size_t)1 + (size_t)dice(m, dice(m, 2) ? 4 : 60), n = 0, range = 0;
    const int64_t *lo, *hi;
    if (keys_count(l->keys) + limit > IN_FLIGHT)
        return;
    size_t n_ranges = gaps_ranges(l->gaps, &lo, &hi);
    for (int64_t id = 1; id <= m->last && n < limit; id++) {
        while (range < n_ranges && hi[range] < id)
            range++;
        bool wanted = id > gaps_high(l->gaps) || (range < n_ranges && lo[range] <= id);
        if (wanted && m->rows[id].fate == COMMITTED && !m->rows[id].deleted)
            ids[n++] = id;
    }
    (void)gaps_look(l->gaps, ids, n, n < limit, m->now_ms);
    for (size_t i = 0; i < n; i++) {
        if (l->epoch == m->cursor.epoch) { // reads nothing twice
            assert_true(m->rows[ids[i]].read_by < l->epoch);
            m->rows[ids[i]].read_by = l->epoch;
        }
        char name[16];
        snprintf(name, sizeof name, "k%d", m->rows[ids[i]].key);
        key *head = keys_add(l->keys, T, po_s(name), ids[i], m->now_ms);
        if (head)
            l->ready[l->n_ready++] = head;
    }
}

static void sample(model *m, life *l) {
    uint64_t holders[WRITERS];
    size_t n = 0;
    for (int i = 0; i < WRITERS; i++)
        if (m->writers[i].locked)
            holders[n++] = m->writers[i].vtx;
    for (size_t i = 1; i < n; i++) // ascending
        for (size_t j = i; j > 0 && holders[j] < holders[j - 1]; j--) {
            uint64_t swap = holders[j];
            holders[j] = holders[j - 1];
            holders[j - 1] = swap;
        }
    (void)gaps_sample(l->gaps, holders, n);
}

static key *take_any(model *m, key **list, size_t *n) {
    size_t at = (size_t)dice(m, (int)*n);
    key *one = list[at];
    list[at] = list[--*n];
    return one;
}

static void send(model *m, life *l) {
    if (l->n_ready == 0)
        return;
    key *head = take_any(m, l->ready, &l->n_ready);
    if (m->rows[head->id].deleted) { // only one that was overtaken finds that
        assert_true(m->rows[head->id].acked);
        key *next = keys_finish(l->keys, head);
        if (next)
            l->ready[l->n_ready++] = next;
        return;
    }
    l->sent[l->n_sent++] = head;
}

// P18: a row that is stored for the first time has all rows of its key that were committed before it in the topic.
static void stored(model *m, int64_t id) {
    for (int64_t before = 1; before < id && !m->rows[id].acked; before++)
        if (m->rows[before].fate == COMMITTED && m->rows[before].key == m->rows[id].key)
            assert_true(m->rows[before].acked);
    m->acked += !m->rows[id].acked;
    m->rows[id].acked = true;
}

static void acknowledge(model *m, life *l) {
    if (l->n_sent == 0)
        return;
    key *head = take_any(m, l->sent, &l->n_sent);
    assert_int_equal(m->rows[head->id].fate, COMMITTED);
    if (dice(m, 4) > 0) {
        stored(m, head->id);
        key *next = keys_finish(l->keys, head);
        if (next)
            l->ready[l->n_ready++] = next;
        return;
    }
    if (dice(m, 2)) // stored, and the answer is lost
        stored(m, head->id);
    l->ready[l->n_ready++] = head; // sent again
}

// Every id ≤ floor is stored, gone for good, or listed; and no more than that is listed.
static void assert_sound(const model *m, const plan *p, const life *l) {
    assert_true(p->floor >= m->cursor.floor && p->floor <= gaps_high(l->gaps));
    for (size_t i = 0; i < p->n; i++) {
        assert_true(p->lo[i] <= p->hi[i] && p->hi[i] <= p->floor);
        assert_true(i == 0 || p->hi[i - 1] + 1 < p->lo[i]);
    }
    size_t range = 0;
    for (int64_t id = 1; id <= p->floor; id++) {
        while (range < p->n && p->hi[range] < id)
            range++;
        bool listed = range < p->n && p->lo[range] <= id;
        const table_row *row = &m->rows[id];
        bool done = row->fate == ROLLED_BACK || (row->fate == COMMITTED && row->acked);
        if (!listed && !done)
            fail_msg("id %lld is lost below the floor %lld", (long long)id, (long long)p->floor);
    }
}

static void checkpoint(model *m, life *l) {
    if (l->epoch != m->cursor.epoch) { // fenced
        life_end(l);
        return;
    }
    po_arena_reset(m->arena);
    plan p = cursor_plan(m->arena, l->keys, l->gaps, m->cursor.floor, m->now_ms);
    assert_sound(m, &p, l);
    assert_true(p.n <= OPEN);
    m->cursor.floor = p.floor;
    m->cursor.n = p.n;
    if (p.n > 0) {
        memcpy(m->cursor.lo, p.lo, p.n * sizeof *p.lo);
        memcpy(m->cursor.hi, p.hi, p.n * sizeof *p.hi);
    }
}

static void prune(model *m) {
    for (int64_t id = 1; id <= m->cursor.floor; id++) {
        table_row *row = &m->rows[id];
        if (row->fate != COMMITTED || row->deleted || is_open(&m->cursor, id) || dice(m, 2))
            continue;
        assert_true(row->acked);
        row->deleted = true;
        m->deleted++;
    }
}

// --- What happens

static void step_life(model *m, life *l) {
    if (l->epoch == 0)
        return;
    int what = dice(m, 100);
    if (what < 25)
        look(m, l);
    else if (what < 40)
        sample(m, l);
    else if (what < 65)
        send(m, l);
    else if (what < 92)
        acknowledge(m, l);
    else if (what < 98)
        checkpoint(m, l);
    else
        gaps_forget_samples(l->gaps); // another session
}

// The server: transactions end, those that are prepared come back as somebody else; the relay has a new session.
static void restart_server(model *m) {
    for (int i = 0; i < WRITERS; i++) {
        writer *w = &m->writers[i];
        if (w->prepared)
            w->vtx = m->next_vtx++;
        else if (w->active)
            end_writer(m, w, false);
    }
    for (int skipped = dice(m, 33); skipped > 0; skipped--) // the sequence jumps
        m->rows[++m->last].fate = ROLLED_BACK;
    for (int i = 0; i < 2; i++)
        if (m->lives[i].epoch)
            gaps_forget_samples(m->lives[i].gaps);
}

static void replace_relay(model *m) {
    m->deaths++;
    life_end(&m->lives[1]);
    if (dice(m, 2)) // it only slept, and goes on until it looks at its lease
        m->lives[1] = m->lives[0];
    else
        life_end(&m->lives[0]);
    life_begin(m, &m->lives[0]);
}

static void model_step(model *m) {
    m->now_ms += dice(m, 10) ? dice(m, 20) : dice(m, 1500);
    int what = dice(m, 1000);
    if (what < 500)
        step_writer(m, &m->writers[dice(m, WRITERS)]);
    else if (what < 900)
        step_life(m, &m->lives[0]);
    else if (what < 960)
        step_life(m, &m->lives[1]);
    else if (what < 980)
        prune(m);
    else if (what < 985)
        restart_server(m);
    else if (what < 992)
        replace_relay(m);
}

static void settle(model *m) {
    life *l = &m->lives[0];
    life_end(&m->lives[1]);
    for (int i = 0; i < WRITERS; i++)
        if (m->writers[i].active)
            end_writer(m, &m->writers[i], i % 2 == 0);
    for (int i = 0; i < 1500; i++) {
        look(m, l);
        sample(m, l);
        while (l->n_ready > 0)
            send(m, l);
        while (l->n_sent > 0)
            acknowledge(m, l);
    }
    m->now_ms += 5000;
    checkpoint(m, l);
    const int64_t *lo, *hi;
    assert_int_equal(gaps_ranges(l->gaps, &lo, &hi), 0);
    assert_int_equal(keys_count(l->keys), 0);
    assert_int_equal(m->cursor.floor, gaps_high(l->gaps));
    assert_int_equal(m->cursor.n, 0);
}

static void assert_all_published(const model *m) {
    int64_t committed = 0;
    for (int64_t id = 1; id <= m->last; id++) {
        committed += m->rows[id].fate == COMMITTED;
        assert_int_equal(m->rows[id].acked, m->rows[id].fate == COMMITTED);
    }
    assert_int_equal(m->acked, committed);
    assert_true(committed > 300 && m->deleted > 100 &&
                m->deaths > 10); // is this the storm that was ordered?
}

static void test_whatever_happens_every_row_is_published_in_the_order_of_its_key(void **state) {
    (void)state;
    static model m;
    for (unsigned seed = 1; seed <= (unsigned)n_seeds; seed++) {
        memset(&m, 0, sizeof m);
        m.seed = seed;
        m.next_vtx = 1;
        m.now_ms = 100000;
        m.arena = po_arena_new();
        life_begin(&m, &m.lives[0]);
        for (int i = 0; i < STEPS; i++)
            model_step(&m);
        settle(&m);
        assert_all_published(&m);
        life_end(&m.lives[0]);
        po_arena_free(&m.arena);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whatever_happens_every_row_is_published_in_the_order_of_its_key),
    };
    if (argc > 1)
        n_seeds = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
