/* Delays what a network namespace sends to a TUN device: what some kernels lack of `tc netem`.

   The device gives every packet back after the same time, in the same order, so a namespace in the middle
   routes one direction of a link through it. Packets have no offloads: the kernel cuts them to the MTU before
   it writes them here. Ends when its standard input does.

       ip netns exec NAMESPACE ./relay MICROSECONDS DEVICE
*/

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 2048, MOST_WAITING = 1 << 15, MOST_AT_ONCE = 64 };

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
    if (count != 3) {
        fprintf(stderr, "usage: relay MICROSECONDS DEVICE\n");
        return 2;
    }
    int64_t delay = 1000LL * atoll(words[1]);
    struct line line = {.fd = open_device(words[2]), .ring = malloc(sizeof(struct packet) * MOST_WAITING)};
    if (line.ring == NULL)
        return 1;
    puts("ready");
    fflush(stdout);
    for (;;) {
        take(&line, delay);
        int64_t due = give(&line), wait = due < 0 ? 1000000000LL : due - now();
        struct timespec timeout = {wait > 0 ? wait / 1000000000LL : 0, wait > 0 ? wait % 1000000000LL : 0};
        short events = line.read - line.written < MOST_WAITING ? POLLIN : 0;
        struct pollfd polled[] = {{.fd = line.fd, .events = events}, {.fd = 0, .events = POLLIN}};
        ppoll(polled, 2, &timeout, NULL);
        char byte;
        if (polled[1].revents && read(0, &byte, 1) == 0)
            return 0;
    }
}
