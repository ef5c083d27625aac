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

void pp_team_wait_ends(pp_handle_t *handle, bool seen, pp_request_state_t state)
{
    pp_team_t *team = handle->team;
    if (pp_handle_waits(handle)) {
        team->waiting--;
        team->unseen -= !seen;
    }
    handle->request.state = state;
    team->engine->changed = true;
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

void pp_team_close(pp_team_t *team)
{
    free(team->boards);
    free(team->tuned);
    team->tuned = NULL;
    team->boards = NULL;
    team->board_count = team->board_capacity = 0;
}
