/* team.c - see team.h. */
#include "team.h"

#include "../node/board.h"

#include <stdlib.h>

void pp_team_wait_begins(pp_handle_t *handle, bool seen)
{
    pp_team_t *team = handle->team;
    handle->request.state = PP_OUTSTANDING;
    team->waiting++;
    team->unseen += !seen;
    team->waits++;
    team->engine->changed = true;
}

void pp_team_count_as_given(const pp_team_t *team, const pp_handle_t *but)
{
    PP_FOR_EACH_HANDLE(team->engine, handle)
        if (handle != but && handle->kind->count_as_given)
            handle->kind->count_as_given(handle);
}

void pp_team_wait_ends(pp_handle_t *handle, bool seen, pp_request_state_t state)
{
    pp_team_t *team = handle->team;
    if (pp_handle_waits(handle)) {
        /* The others' exemption may end with this wait; rounds until now count as given. */
        if (team->live_handles > 1 && !seen)
            pp_team_count_as_given(team, handle);
        team->waiting--;
        team->unseen -= !seen;
    }
    handle->request.state = state;
    team->engine->changed = true;
}

int32_t pp_team_buffers_key(int32_t device, int32_t device_path)
{
    return device_path << 1 | (device > 0 && device_path != PP_DEVICE_STAGED);
}

const char *pp_team_path_text(int32_t device_path)
{
    static const char *const texts[] = {"", ", device_path=staged", ", device_path=ipc",
                                        ", device_path=direct"};
    return texts[device_path];
}

pp_status_t pp_team_add_board(pp_team_t *team, pp_board_t *board)
{
    if (!pp_grow((void **)&team->boards, &team->board_capacity, team->board_count + 1, sizeof(pp_board_t *)))
        return pp_fail(PP_ERR_MEMORY, "no memory for another handle");
    team->boards[team->board_count++] = board;
    return PP_OK;
}

void pp_team_remove_board(pp_team_t *team, const pp_board_t *board)
{
    for (size_t i = 0; i < team->board_count; i++)
        if (team->boards[i] == board) {
            team->boards[i] = team->boards[--team->board_count];
            return;
        }
}

void pp_team_publish_presence(const pp_team_t *team)
{
    const pp_engine_t *engine = team->engine;
    pp_node_set_presence(engine->node, engine->calls, team->in_call, team->exits,
                         team->unseen > 0 || team->waits_in_others > 0);
}

uint64_t pp_team_patience_ns(const pp_team_t *team, const pp_habit_t *habit)
{
    return team->patience_ns >= 0 ? (uint64_t)team->patience_ns : pp_habit_patience(habit, &team->habit);
}

uint64_t pp_team_coarse_now(const pp_team_t *team)
{
    pp_transport_t *transport = team->engine->transport;
    return transport->ops->coarse_ns ? transport->ops->coarse_ns(transport) : transport->ops->now_ns(transport);
}

uint64_t pp_team_quiet_ns(const pp_handle_t *handle, uint64_t given_ns)
{
    uint64_t now = pp_team_coarse_now(handle->team);
    return given_ns > 0 && handle->team->last.handle == handle->id && now > given_ns ? now - given_ns : 0;
}

void pp_team_leave_by_patience(pp_handle_t *handle, const char *held, uint64_t patience_ns)
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
             handle->engine->rank, held, handle->id, (double)patience_ns * 1e-9, doing);
}

void pp_team_close(pp_team_t *team)
{
    free(team->boards);
    free(team->tuned);
    team->tuned = NULL;
    team->boards = NULL;
    team->board_count = team->board_capacity = 0;
}
