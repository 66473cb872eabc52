/* A star switch in user space: packets between hosts in network namespaces, at a set rate and latency.
 *
 * Usage: switch NAMESPACE...    Host i (from 1) gets the address 10.9.0.i on the TUN device lnk0 of its namespace.
 *
 * A packet crosses the uplink of its sender and the downlink of its receiver. On each it waits its turn, is serialised
 * at the rate of the link, and travels for its latency; it is stored before it is forwarded. Times are virtual: a link is
 * free again when the last bit should have left, not when this program got round to it, so lateness never adds up.
 *
 * Commands on standard input, an answer for each on standard output; the end of the input ends the program:
 *   set HOST NANOSECONDS_PER_BYTE DELAY_NANOSECONDS BUFFER    both links of a host; host 0 stands for all. a packet
 *                                                             that would make more than BUFFER bytes wait is lost
 *   stats                                              packets, drops, mean and largest lateness [ns]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS = 32, MTU = 1500, FRAMING = 38, SHORTEST = 46 };

typedef int64_t nanoseconds;

typedef struct packet {
  struct packet *next;
  nanoseconds at; /* when it is there: at the end of the queue, or of the link */
  int length, to;
  uint8_t bytes[];
} packet;

typedef struct {
  packet *head, *tail;
} line;

typedef struct {
  double per_byte;
  nanoseconds delay, free_at, last;
  long held, buffer;
  line queue, pipe;
} wire;

static wire links[HOSTS][2];
static int device[HOSTS], hosts;
static long delivered, drops;
static nanoseconds lateness, latest;

static nanoseconds now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void append(line *to, packet *one) {
  one->next = NULL;
  if (to->tail) to->tail->next = one;
  else to->head = one;
  to->tail = one;
}

static packet *take(line *from) {
  packet *one = from->head;
  from->head = one->next;
  if (!from->head) from->tail = NULL;
  return one;
}

static int on_wire(const packet *one) { return (one->length < SHORTEST ? SHORTEST : one->length) + FRAMING; }

static void enter(wire *on, packet *one) {
  if (on->held + one->length > on->buffer) {
    drops++;
    free(one);
    return;
  }
  on->held += one->length;
  append(&on->queue, one);
}

static nanoseconds start_of(const wire *on) {
  return on->queue.head->at > on->free_at ? on->queue.head->at : on->free_at;
}

static void serialise(wire *on, nanoseconds time) {
  while (on->queue.head && start_of(on) <= time) {
    nanoseconds start = start_of(on);
    packet *one = take(&on->queue);
    on->held -= one->length;
    on->free_at = start + (nanoseconds)(on_wire(one) * on->per_byte + 0.5);
    one->at = on->free_at + on->delay;
    if (one->at < on->last) one->at = on->last; /* no packet overtakes another when the latency falls */
    on->last = one->at;
    append(&on->pipe, one);
  }
}

static void deliver(int host, packet *one, nanoseconds time) {
  nanoseconds late = time - one->at;
  lateness += late;
  if (late > latest) latest = late;
  if (write(device[host], one->bytes, one->length) < 0) drops++;
  else delivered++;
  free(one);
}

/* Do what is due, and return when something is due next. */
static nanoseconds advance(nanoseconds time) {
  nanoseconds next = INT64_MAX;
  for (int way = 0; way < 2; way++)
    for (int host = 0; host < hosts; host++) {
      wire *on = &links[host][way];
      serialise(on, time);
      while (on->pipe.head && on->pipe.head->at <= time) {
        packet *one = take(&on->pipe);
        if (way) deliver(host, one, now());
        else enter(&links[one->to][1], one);
      }
      if (on->pipe.head && on->pipe.head->at < next) next = on->pipe.head->at;
      if (on->queue.head && start_of(on) < next) next = start_of(on);
    }
  return next;
}

static void receive(int host) {
  static uint8_t bytes[MTU + 100];
  for (int count = 0; count < 16; count++) {
    int length = read(device[host], bytes, sizeof bytes);
    if (length < 20) return;
    /* IPv4 to one of our own hosts; nothing else is let through. */
    if (bytes[0] >> 4 != 4 || bytes[16] != 10 || bytes[17] != 9 || bytes[18] != 0) continue;
    if (bytes[19] < 1 || bytes[19] > hosts) continue;
    packet *one = malloc(sizeof *one + length);
    if (!one) exit(1);
    memcpy(one->bytes, bytes, length);
    one->length = length;
    one->to = bytes[19] - 1;
    one->at = now();
    enter(&links[host][0], one);
  }
}

static void obey(const char *command) {
  int host;
  double per_byte;
  long long delay;
  long buffer;
  if (sscanf(command, "set %d %lf %lld %ld", &host, &per_byte, &delay, &buffer) == 4 && host >= 0 && host <= hosts) {
    for (int one = 0; one < hosts; one++)
      if (!host || host == one + 1)
        for (int way = 0; way < 2; way++) {
          wire *on = &links[one][way];
          on->per_byte = per_byte, on->delay = delay, on->buffer = buffer;
        }
    printf("done\n");
  } else if (!strncmp(command, "stats", 5)) {
    printf("%ld %ld %lld %lld\n", delivered, drops, delivered ? (long long)(lateness / delivered) : 0LL, (long long)latest);
    delivered = drops = lateness = latest = 0;
  } else {
    printf("unknown\n");
  }
  fflush(stdout);
}

static int attach(const char *name) {
  char path[300];
  snprintf(path, sizeof path, "/var/run/netns/%.200s", name);
  int space = open(path, O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET)) return -1;
  close(space);
  int file = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
  strcpy(request.ifr_name, "lnk0");
  if (file < 0 || ioctl(file, TUNSETIFF, &request)) return -1;
  return file;
}

int main(int count, char **names) {
  if (count < 2 || count - 1 > HOSTS) return 2;
  int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  for (hosts = 0; hosts < count - 1; hosts++)
    if ((device[hosts] = attach(names[hosts + 1])) < 0) {
      perror(names[hosts + 1]);
      return 1;
    }
  if (setns(own, CLONE_NEWNET)) return 1;
  /* Both only make it more punctual; without the right to, it is late more often. */
  struct sched_param priority = {.sched_priority = 20};
  if (sched_setscheduler(0, SCHED_FIFO, &priority)) errno = 0;
  prctl(PR_SET_TIMERSLACK, 1);
  printf("ready\n");
  fflush(stdout);

  struct pollfd files[HOSTS + 1];
  for (int host = 0; host < hosts; host++) files[host] = (struct pollfd){device[host], POLLIN, 0};
  files[hosts] = (struct pollfd){0, POLLIN, 0};
  for (;;) {
    nanoseconds next = advance(now()), left = next == INT64_MAX ? 1000000000 : next - now();
    if (left < 0) left = 0;
    if (left > 1000000000) left = 1000000000;
    struct timespec wait = {left / 1000000000, left % 1000000000};
    if (ppoll(files, hosts + 1, &wait, NULL) < 0 && errno != EINTR) return 1;
    for (int host = 0; host < hosts; host++)
      if (files[host].revents) receive(host);
    if (files[hosts].revents) {
      static char command[4096];
      int length = read(0, command, sizeof command - 1);
      if (length <= 0) return 0;
      command[length] = 0;
      obey(command);
    }
  }
}
