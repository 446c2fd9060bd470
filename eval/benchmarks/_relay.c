/* Delays what leaves a network namespace through TUN devices: what this kernel lacks of `tc netem`.

   Each device that is named gives back every packet of its own after the same time, in the same order, so a
   namespace in the middle routes one direction of a link through each of them. Packets have no offloads: the
   kernel cuts them to the MTU before it writes them here. Ends when its standard input does.

       ip netns exec NAMESPACE ./relay MICROSECONDS DEVICE [DEVICE ...]
*/

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST_DEVICES = 4, MOST_BYTES = 2048, MOST_WAITING = 1 << 15, MOST_AT_ONCE = 64 };

struct packet {
    int64_t due;
    int bytes;
    char content[MOST_BYTES];
};

struct line {
    int fd;
    uint64_t read, written; /* packets so far; those between wait in the ring */
    struct packet *ring;
};

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int open_device(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0) {
        perror(name);
        exit(1);
    }
    return fd;
}

/* Takes what the kernel has sent, as far as there is room: what finds none waits in the queue of the device. */
static void take(struct line *line, int64_t delay) {
    for (int i = 0; i < MOST_AT_ONCE && line->read - line->written < MOST_WAITING; i++) {
        struct packet *packet = &line->ring[line->read % MOST_WAITING];
        packet->bytes = read(line->fd, packet->content, MOST_BYTES);
        if (packet->bytes <= 0)
            return;
        packet->due = now() + delay;
        line->read++;
    }
}

/* Gives back what is due; returns when the next one is, or -1. */
static int64_t give(struct line *line) {
    while (line->written < line->read) {
        struct packet *packet = &line->ring[line->written % MOST_WAITING];
        if (packet->due > now())
            return packet->due;
        if (write(line->fd, packet->content, packet->bytes) < 0 && errno == EAGAIN)
            return now() + 100000;
        line->written++;
    }
    return -1;
}

int main(int count, char **words) {
    struct line lines[MOST_DEVICES];
    struct pollfd polled[MOST_DEVICES + 1];
    int devices = count - 2;
    if (devices < 1 || devices > MOST_DEVICES) {
        fprintf(stderr, "usage: relay MICROSECONDS DEVICE [DEVICE ...]\n");
        return 2;
    }
    int64_t delay = 1000LL * atoll(words[1]);
    for (int i = 0; i < devices; i++) {
        lines[i] = (struct line){.fd = open_device(words[2 + i])};
        lines[i].ring = malloc(sizeof(struct packet) * MOST_WAITING);
        if (lines[i].ring == NULL)
            return 1;
        polled[i] = (struct pollfd){.fd = lines[i].fd, .events = POLLIN};
    }
    polled[devices] = (struct pollfd){.fd = 0, .events = POLLIN};
    /* It stands for a wire, so no other process may keep it waiting. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t next = -1;
        for (int i = 0; i < devices; i++) {
            take(&lines[i], delay);
            int64_t due = give(&lines[i]);
            if (due >= 0 && (next < 0 || due < next))
                next = due;
            polled[i].events = lines[i].read - lines[i].written < MOST_WAITING ? POLLIN : 0;
        }
        int64_t wait = next < 0 ? 1000000000LL : next - now();
        struct timespec timeout = {wait > 0 ? wait / 1000000000LL : 0, wait > 0 ? wait % 1000000000LL : 0};
        ppoll(polled, devices + 1, &timeout, NULL);
        char byte;
        if ((polled[devices].revents & (POLLIN | POLLHUP)) && read(0, &byte, 1) == 0)
            return 0;
    }
}
