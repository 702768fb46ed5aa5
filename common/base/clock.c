// Instants are counted, not looked up: the calendar below is the proleptic Gregorian one, in
// integers, so no time zone data or locale has a say.
#include "base/clock.h"
#include <stdio.h>
#include <time.h>

enum { DAY_S = 86400, ERA_DAYS = 146097, EPOCH_DAY = 719468 }; // an era is 400 years from 1 March

int64_t po_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * PO_SECOND_US + t.tv_nsec / 1000;
}

int64_t po_mono_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t floor_div(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

static int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    int64_t era = floor_div(year, 400), year_of_era = year - era * 400;
    int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * ERA_DAYS + day_of_era - EPOCH_DAY;
}

static void civil_from_days(int64_t days, int64_t *ret_year, int64_t *ret_month, int64_t *ret_day) {
    days += EPOCH_DAY;
    int64_t era = floor_div(days, ERA_DAYS), d = days - era * ERA_DAYS;
    int64_t year = (d - d / 1460 + d / 36524 - d / 146096) / 365;
    int64_t day_of_year = d - (365 * year + year / 4 - year / 100);
    int64_t m = (5 * day_of_year + 2) / 153; // 0 = March
    *ret_day = day_of_year - (153 * m + 2) / 5 + 1;
    *ret_month = m < 10 ? m + 3 : m - 9;
    *ret_year = year + era * 400 + (*ret_month <= 2);
}

void po_rfc3339(int64_t instant_us, char out[PO_RFC3339_SIZE]) {
    int64_t seconds = floor_div(instant_us, PO_SECOND_US);
    int64_t days = floor_div(seconds, DAY_S), year, month, day;
    int us = (int)(instant_us % PO_SECOND_US), s = (int)(seconds - days * DAY_S);
    us += us < 0 ? (int)PO_SECOND_US : 0;
    civil_from_days(days, &year, &month, &day);
    char text[80]; // longer than any int64 instant needs, so that the compiler sees that nothing is
                   // cut
    snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", (int)year, (int)month,
             (int)day, s / 3600, s / 60 % 60, s % 60, us);
    snprintf(out, PO_RFC3339_SIZE, "%.31s", text);
}

// Reads `width` digits and, if `behind` is not NUL, that character; advances *s.
static bool take_number(po_str *s, size_t width, char behind, int *ret_value) {
    size_t n = width + (behind != 0);
    if (s->n < n || (behind && s->p[width] != behind))
        return false;
    int value = 0;
    for (size_t i = 0; i < width; i++) {
        if (s->p[i] < '0' || s->p[i] > '9')
            return false;
        value = value * 10 + (s->p[i] - '0');
    }
    *ret_value = value;
    *s = (po_str){s->p + n, s->n - n};
    return true;
}

static bool take_fraction(po_str *s, int *ret_us) {
    int us = 0, scale = 100000, digit;
    if (s->n == 0 || s->p[0] != '.')
        return true;
    *s = (po_str){s->p + 1, s->n - 1};
    if (!take_number(s, 1, 0, &digit))
        return false;
    do {
        us += digit * scale;
        scale /= 10;
    } while (take_number(s, 1, 0, &digit));
    *ret_us = us;
    return true;
}

static bool take_offset(po_str s, int *ret_minutes) {
    if (po_str_is(s, "Z")) {
        *ret_minutes = 0;
        return true;
    }
    if (s.n != 6 || (s.p[0] != '+' && s.p[0] != '-'))
        return false;
    int sign = s.p[0] == '-' ? -1 : 1, hours, minutes;
    s = (po_str){s.p + 1, s.n - 1};
    if (!take_number(&s, 2, ':', &hours) || !take_number(&s, 2, 0, &minutes) || hours > 23 ||
        minutes > 59)
        return false;
    *ret_minutes = sign * (hours * 60 + minutes);
    return true;
}

static int days_in_month(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

bool po_parse_rfc3339(po_str s, int64_t *ret_us) {
    int year, month, day, hour, minute, second, us = 0, offset;
    if (!take_number(&s, 4, '-', &year) || !take_number(&s, 2, '-', &month) ||
        !take_number(&s, 2, 'T', &day) || !take_number(&s, 2, ':', &hour) ||
        !take_number(&s, 2, ':', &minute) || !take_number(&s, 2, 0, &second) ||
        !take_fraction(&s, &us) || !take_offset(s, &offset))
        return false;
    if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month) || hour > 23 ||
        minute > 59 || second > 60) // 60: a leap second is the first instant of the next minute
        return false;
    int64_t seconds =
        days_from_civil(year, month, day) * DAY_S + hour * 3600 + (minute - offset) * 60 + second;
    *ret_us = seconds * PO_SECOND_US + us;
    return true;
}
