/* patience.c - see patience.h. */
#include "patience.h"

enum {
    TELL_SHARE = 8,                  /* after so large a part of the patience a waiting rank tells the others, */
    TELL_NS_MAX = 50000000,          /* but no later than this */
    TELL_SOON_NS = 1000000,          /* the same, if it is to tell them soon */
    AGAIN_NS_MIN = 100000000,        /* it tells them again, twice as late each time: what it says may be new to them */
    AGAIN_MAX = 20
};

bool pp_patience_ends(const pp_handle_t *handle)
{
    const pp_team_t *team = handle->team;
    return team->patience_ns != PP_FOR_EVER && !handle->waits_as_mpi && team->engine->size > 1;
}

uint64_t pp_patience_ns(const pp_handle_t *handle)
{
    const pp_team_t *team = handle->team;
    return team->patience_ns >= 0 ? (uint64_t)team->patience_ns : pp_habit_patience(&handle->clock.habit, &team->habit);
}

/* ---- this rank's own calls ------------------------------------------------------------------------------------- */

/* A rank that is alone holds no other up. */
void pp_patience_given(pp_handle_t *handle)
{
    const pp_team_t *team = handle->team;
    if (team->patience_ns != PP_FOR_EVER && team->engine->size > 1)
        handle->clock.given_ns = pp_team_coarse_now(team);
}

void pp_patience_computed(pp_handle_t *handle, uint64_t since_ns)
{
    if (since_ns == 0)
        return;
    uint64_t now = pp_team_coarse_now(handle->team), taken = now > since_ns ? now - since_ns : 0;
    pp_habit_add(&handle->clock.habit, taken);
    pp_habit_add(&handle->team->habit, taken);
}

void pp_patience_asks(pp_handle_t *handle)
{
    pp_patience_computed(handle, handle->clock.given_ns);
    handle->clock.given_ns = 0;
}

uint64_t pp_patience_quiet_ns(const pp_handle_t *handle)
{
    const uint64_t given_ns = handle->clock.given_ns, now = pp_team_coarse_now(handle->team);
    return given_ns > 0 && handle->team->last.handle == handle->id && now > given_ns ? now - given_ns : 0;
}

/* ---- others ---------------------------------------------------------------------------------------------------- */

void pp_patience_anew(pp_handle_t *handle, bool soon)
{
    handle->clock.tell_ns = 0;
    handle->clock.tells_soon = soon && handle->clock.tells > 0;
    handle->clock.tells = 0;
}

bool pp_patience_tells(pp_handle_t *handle, uint64_t now_ns, uint64_t *next_ns)
{
    const uint64_t patience = pp_patience_ns(handle);
    const uint64_t delay = pp_earlier(patience / TELL_SHARE, handle->clock.tells_soon ? TELL_SOON_NS : TELL_NS_MAX);
    if (handle->clock.tell_ns == 0)
        handle->clock.tell_ns = now_ns + delay;
    *next_ns = handle->clock.tell_ns;
    if (handle->clock.tells == AGAIN_MAX)
        *next_ns = PP_NEVER_NS;
    if (handle->clock.tells == AGAIN_MAX || now_ns < handle->clock.tell_ns)
        return false;
    const uint64_t again = patience > AGAIN_NS_MIN ? patience : AGAIN_NS_MIN;
    *next_ns = handle->clock.tell_ns = pp_later(now_ns, again << handle->clock.tells++);
    return true;
}

void pp_patience_leave(pp_handle_t *handle, const char *held)
{
    pp_team_t *team = handle->team;
    handle->by_patience = true;
    handle->engine->coverage.asides++;
    handle->engine->changed = true;
    if (team->left_by_patience++ > 0)
        return;
    const char *doing = team->in_call                ? "was in a collective call, or a block of ctx.away(), that another "
                                                       "rank had left"
                      : pp_handle_elsewhere(handle)  ? "waited on another handle"
                                                     : "computed, or was in a call of the application's own";
    team->has_note = true;
    snprintf(team->patience_note, sizeof team->patience_note,
             "rank %d held up %s of handle %u for its patience of %.3g s, and then left it to the others: it %s. Make blocking "
             "calls of all ranks through ctx.comm, average by optimizer.mean(), or put calls into `with ctx.away():`, to "
             "spare the other ranks that time",
             handle->engine->rank, held, handle->id, (double)pp_patience_ns(handle) * 1e-9, doing);
}
