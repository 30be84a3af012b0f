/* Preloaded into a program, this sets its wall clock: ahead by the seconds (an int64) that the file at WALL_CLOCK_AHEAD
   holds at the moment. Every other clock stays the machine's. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void map_ahead(void) {
    int file = open(getenv("WALL_CLOCK_AHEAD"), O_RDONLY | O_CLOEXEC);
    void *memory = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || memory == MAP_FAILED) abort();
    close(file);
    ahead = memory;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && ahead) time->tv_sec += *ahead;
    return result;
}
