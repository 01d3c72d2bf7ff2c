/* Element by element: what a reduction does with two operands. */
#ifndef TLKIT_REDUCE_H
#define TLKIT_REDUCE_H

#include <stddef.h>

/* into[i] = one[i] op other[i]; `into` may be either operand. */
typedef void (*Reduce)(void *into, const void *one, const void *other, size_t count);

/* The function for a type and an operation, by name, and the bytes of an element; NULL if there is none. */
Reduce find_reduce(const char *dtype, const char *op, size_t *width);

#endif
