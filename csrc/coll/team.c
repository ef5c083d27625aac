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
        if (handle != but && handle->ops->count_as_given)
            handle->ops->count_as_given(handle);
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

void pp_handle_keep_in_step(pp_handle_t *handle, bool in_step)
{
    in_step &= handle->team->engine->size > 1;
    atomic_fetch_add(handle->team->in_step, (int32_t)in_step - (int32_t)handle->in_step);
    handle->in_step = in_step;
}

bool pp_handle_is_tied(const pp_handle_t *handle) { return atomic_load(handle->team->in_step) > handle->in_step; }

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

uint64_t pp_team_coarse_now(const pp_team_t *team)
{
    pp_transport_t *transport = team->engine->transport;
    return transport->ops->coarse_ns ? transport->ops->coarse_ns(transport) : transport->ops->now_ns(transport);
}

void pp_team_close(pp_team_t *team)
{
    free(team->boards);
    free(team->tuned);
    team->tuned = NULL;
    team->boards = NULL;
    team->board_count = team->board_capacity = 0;
}
