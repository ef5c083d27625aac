/* gather.c - the elements of a Start, on the way to where the rounds read them.  See staging.h. */
#include "staging.h"

static void gather(const pp_allreduce_t *coll, const pp_piece_t *pieces, size_t count, const pp_target_t *target)
{
    const pp_kernels_t *kernels = &coll->series.kernels;
    bool combine = target->combine && !target->drop;
    char *at = target->elements;
    for (size_t i = 0; i < count; i++) {
        const pp_piece_t *piece = &pieces[i];
        const void *from = piece->send ? piece->send : piece->recv;
        if (combine)
            kernels->users->load_combined(kernels, at, from, piece->count);
        else if (coll->ops->copy_in && pp_users_are_vectors(kernels) && piece->count > 0)
            coll->ops->copy_in(coll, at, from, piece->count * kernels->element_bytes);
        else
            kernels->users->load(kernels, at, from, piece->count);
        at += piece->count * kernels->element_bytes;
    }
    if (!combine && kernels->normalise)
        kernels->memory->normalise(kernels, target->elements, coll->count);
    if (kernels->memory->finish)
        kernels->memory->finish(kernels->memory);
}

/* To memory of a device it is an operation of the device. */
static bool takes_long(const pp_allreduce_t *coll)
{
    const pp_staging_t *staging = coll->handle.staging;
    return coll->series.vectors.bytes > PP_SMALL_COPY_BYTES || (staging && staging->lane.folds);
}

/* Only this thread adds to what is pending, so a target stays as it is while the lock is released.  The exception is a
   `locked` target, which a round may take at any moment. */
void pp_allreduce_gather(pp_ctx_t *ctx, const pp_allreduce_t *coll, const pp_piece_t *pieces, size_t count,
                         const pp_target_t *target)
{
    bool unlocked = takes_long(coll) && target->elements && !target->locked;
    if (unlocked)
        pthread_mutex_unlock(&ctx->lock);
    if (target->elements)
        gather(coll, pieces, count, target);
    if (unlocked)
        pthread_mutex_lock(&ctx->lock);
}
