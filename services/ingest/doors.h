// The doors for providers: POST /webhooks/PROVIDER/ALIAS and POST /observations/PROVIDER/ALIAS.
// Verify over the raw bytes, read, queue; the answer comes after COMMIT (P1).
//   200 recorded, duplicate, conflict, ignored, foreign or quarantined · 400 malformed signature
//   header · 401 missing, wrong or stale signature · 404 unknown alias · 413/415 … see
//   docs/http-edge.md · 503 + Retry-After
#pragma once
#include "accounts.h"
#include "intake.h"

typedef struct doors {
    const accounts *accounts;
    intake *in;
} doors;

void doors_webhook(po_request *request, void *doors);
void doors_observation(po_request *request, void *doors);
void doors_declare_metrics(void);

// The request's trace context when valid, else a new one. Lives in the arena.
trace doors_trace(po_request *request, po_arena *arena);
