/* bulk.c - see bulk.h. */
#include "bulk.h"
#include "message.h"

#include <stdio.h>
#include <stdlib.h>

uint32_t pp_bulks_tag(pp_bulks_t *bulks) { return bulks->next_tag++ % bulks->transport->bulk_tags; }

static pp_bulk_t *take(pp_bulks_t *bulks)
{
    pp_bulk_t *bulk = bulks->idle;
    if (bulk) {
        bulks->idle = bulk->next;
    } else if ((bulk = malloc(sizeof *bulk))) {
        bulk->next_made = bulks->made;
        bulks->made = bulk;
    }
    return bulk;
}

static pp_status_t post(pp_transport_t *transport, pp_bulk_t *bulk)
{
    const pp_payload_t *p = &bulk->payload;
    return p->sends ? transport->ops->bulk_send(transport, p->peer, p->tag, p->elements, p->bytes, bulk)
                    : transport->ops->bulk_recv(transport, p->peer, p->tag, p->elements, p->bytes, bulk);
}

static pp_status_t go(pp_transport_t *transport, pp_bulk_t *bulk)
{
    const pp_memory_t *memory = bulk->payload.memory;
    if (memory->reach)
        return post(transport, bulk);
    PP_TRY(memory->lend(memory, bulk->payload.bytes));
    return memory->lent(memory, post(transport, bulk));
}

/* The error's text names the handle. */
static pp_status_t fail(const pp_bulk_t *bulk, pp_status_t status)
{
    char text[PP_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", pp_error_text());
    return pp_fail(status, "handle %u: %s", bulk->payload.handle, text);
}

static void hold(pp_bulks_t *bulks, pp_bulk_t *bulk)
{
    if (!bulks->held)
        bulks->held_end = &bulks->held;
    bulk->next = NULL;
    *bulks->held_end = bulk;
    bulks->held_end = &bulk->next;
}

pp_status_t pp_bulks_begin(pp_bulks_t *bulks, const pp_payload_t *payload, const pp_travelled_t *then)
{
    const pp_memory_t *memory = payload->memory;
    pp_bulk_t         *bulk = take(bulks);
    if (!bulk)
        return pp_fail(PP_ERR_MEMORY, "no memory for a transfer");
    bulk->payload = *payload;
    bulk->then = *then;
    pp_status_t status = memory->mark ? memory->mark(memory, &bulk->mark) : PP_OK;
    if (status == PP_OK)
        status = go(bulks->transport, bulk);
    if (status == PP_PENDING)
        hold(bulks, bulk);
    return status < 0 ? fail(bulk, status) : PP_OK;
}

/* What one kind of memory has queued is over in its order, so behind the first that it holds all others are held, too. */
pp_status_t pp_bulks_look(pp_bulks_t *bulks, int *gone)
{
    const pp_memory_t *holds = NULL;
    for (pp_bulk_t *bulk, **link = &bulks->held; (bulk = *link);) {
        const pp_memory_t *memory = bulk->payload.memory;
        pp_status_t status = memory == holds ? PP_PENDING : memory->reached(memory, bulk->mark);
        if (status == PP_PENDING) {
            holds = memory;
            link = &bulk->next;
            continue;
        }
        *link = bulk->next;
        if (!*link)
            bulks->held_end = link;
        ++*gone;
        if (status == PP_OK)
            status = go(bulks->transport, bulk);
        if (status < 0)
            return fail(bulk, status);
    }
    return PP_OK;
}

bool pp_bulks_hold(const pp_bulks_t *bulks, uint32_t handle)
{
    const pp_bulk_t *bulk = bulks->held;
    while (bulk && bulk->payload.handle != handle)
        bulk = bulk->next;
    return bulk;
}

void pp_bulks_over(pp_bulks_t *bulks, pp_bulk_t *bulk)
{
    bulk->then.over(bulk->then.owner, bulk->then.which);
    bulk->next = bulks->idle;
    bulks->idle = bulk;
}

void pp_bulks_release(pp_bulks_t *bulks)
{
    for (pp_bulk_t *bulk; (bulk = bulks->made);) {
        bulks->made = bulk->next_made;
        free(bulk);
    }
    *bulks = (pp_bulks_t){0};
}
