// The orders API (docs/orders.md). Handlers run on a few threads of their own, a connection each,
// for they wait for the database; reads go to the primary (P34). Commands are serialised by the
// order's row lock.
#pragma once
#include "accounts.h"
#include "http/http.h"
#include "outbox/outbox.h"

typedef struct orders orders;

typedef struct orders_options {
    const po_pg_options *pg;
    accounts *accounts;
    po_ring *ring;
    const char *token; // bearer token of the shop's servers
    unsigned threads;
} orders_options;

PO_MUST_CHECK bool orders_open(const orders_options *options, orders **ret_orders, po_err *err);
// Answers what has queued, joins; what is asked from now on is refused. Accepts NULL.
void orders_finish(orders *orders);
void orders_close(
    orders **orders); // finishes, and frees: only behind the server's end, for handlers look at it

void orders_register(po_request *request, void *orders); // POST /v1/orders
void orders_show(po_request *request, void *orders);     // GET  /v1/orders/*
void orders_cancel(po_request *request, void *orders);   // POST /v1/orders/*/cancel
void orders_add_refs(po_request *request, void *orders); // POST /v1/orders/*/references
void orders_declare_metrics(void);
