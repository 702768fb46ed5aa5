// What a receipt is called and what it says: pure text, no clock, no socket. The same row always gives the same
// bytes, so a repeated delivery is a true copy.
#pragma once
#include "base/arena.h"
#include "base/money.h"

typedef struct receipt {
    po_str message_id; // with its angle brackets
    po_str order_id, purpose, item;
    po_money amount;
    int64_t paid_at_us;
} receipt;

// "payment_receipt:PURPOSE:ORDER". A purpose holds no ':', so an order may hold what it likes.
po_str mail_key(po_arena *arena, po_str purpose, po_str order_id);
// "<32 hex digits of the key's SHA-256@domain>".
po_str mail_message_id(po_arena *arena, po_str key, const char *domain);
// "12.50 USD": every digit of the unit, never rounded.
po_str mail_amount(po_arena *arena, po_money amount);
// A header's value: short printable ASCII as it is, anything else as RFC 2047 encoded words. No byte of `text`
// can end the header.
po_str mail_header_text(po_arena *arena, po_str text);
// A host name: labels of letters, digits and inner hyphens.
bool mail_domain_valid(po_str domain);
// A plain address, atoms@host name, ASCII, ≤ 254 bytes: nothing that could end a header or an SMTP command.
bool mail_address_valid(po_str address);
// The whole message, CRLF lines, ASCII. Both addresses must be valid.
po_str mail_text(po_arena *arena, const receipt *one, po_str from, po_str to);
