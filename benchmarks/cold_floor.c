/* What a listing of table folders costs the kernel and the disk, whoever asks: one name looked up in each folder, with
   nothing of them in memory. Prints microseconds of wall and CPU time. Usage: cold_floor ROOT THREADS */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SHARE 8
static const char *root;
static char **names;
static int count, next;

static void *look(void *unused) {
    char path[4096];
    for (;;) {
        int from = __atomic_fetch_add(&next, SHARE, __ATOMIC_RELAXED);
        if (from >= count) return unused;
        for (int at = from; at < from + SHARE && at < count; at++) {
            snprintf(path, sizeof path, "%s/%s/.lance-deregistered", root, names[at]);
            if (access(path, F_OK) == 0) abort();
        }
    }
}

static double wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

int main(int given, char **values) {
    if (given != 3) return 2;
    root = values[1];
    int threads = atoi(values[2]), caches = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (caches < 0 || write(caches, "3", 1) != 1) return 1;
    double begun = wall(), used = cpu();
    DIR *folder = opendir(root);
    for (struct dirent *item; folder && (item = readdir(folder));) {
        if (item->d_name[0] == '.') continue;
        names = realloc(names, (count + 1) * sizeof *names);
        names[count++] = strdup(item->d_name);
    }
    pthread_t lookers[256];
    for (int at = 0; at < threads && at < 256; at++) pthread_create(&lookers[at], 0, look, 0);
    for (int at = 0; at < threads && at < 256; at++) pthread_join(lookers[at], 0);
    printf("%f %f\n", wall() - begun, cpu() - used);
    return 0;
}
