// A schedule in SimGrid's S4U: exchange_s4u {crossbar,fat-tree,PLATFORM.xml} RANKS TABLE.csv {actors,eager,rounds} JITTER
//
// TABLE.csv is what simnet writes of a schedule, without phases in quotes. With "actors" there is one actor per rank,
// which sends and receives all of its messages of a round at once and waits for them, as one writes it in S4U; with
// "eager" a message leaves though its receiver does not wait for it yet, and both go on once it has arrived; with
// "rounds" a single actor starts all messages of a round and waits for all, which gives in to lock-step. JITTER is the
// mean of an exponential time that a rank sleeps before each of its rounds [s]; 0 for none. Routes are those of
// SimGrid's own crossbar or fat-tree, or those that simnet wrote in a platform; bandwidths and latencies are those of
// programs.py. It prints, as JSON, messages, simulated time, peak memory, and CPU seconds within the engine.

#include <simgrid/s4u.hpp>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

constexpr double LATENCY = 10e-6, BANDWIDTH = 1.25e9;

struct Message {
  int round, src, dst;
  double nbytes;
};

static std::vector<Message> read_table(const char* name)
{
  std::vector<Message> found;
  std::ifstream file(name);
  std::string line, cell;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::stringstream row(line);
    Message one{};
    std::getline(row, cell, ',');
    one.round = std::stoi(cell);
    std::getline(row, cell, ',');
    std::getline(row, cell, ',');
    one.src = std::stoi(cell);
    std::getline(row, cell, ',');
    one.dst = std::stoi(cell);
    std::getline(row, cell, ',');
    one.nbytes = std::stod(cell);
    found.push_back(one);
  }
  return found;
}

static void build_crossbar(int ranks)
{
  auto* zone = sg4::create_star_zone("crossbar");
  for (int rank = 0; rank < ranks; rank++) {
    auto* host = zone->create_host("host:" + std::to_string(rank), 1e9);
    auto* link = zone->create_split_duplex_link("link" + std::to_string(rank), BANDWIDTH);
    link->set_latency(LATENCY / 2)->seal();
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {{link, sg4::LinkInRoute::Direction::UP}}, true);
  }
  zone->seal();
}

static void build_fat_tree(int ranks)
{
  unsigned k = 2;
  while (k * k * k / 4 < static_cast<unsigned>(ranks))
    k += 2;
  const unsigned half = k / 2;
  const auto host = [](sg4::NetZone* zone, const std::vector<unsigned long>&, unsigned long number) {
    const auto* made = zone->create_host("host:" + std::to_string(number), 1e9);
    return std::make_pair(made->get_netpoint(), static_cast<simgrid::kernel::routing::NetPoint*>(nullptr));
  };
  sg4::create_fatTree_zone("fat-tree", nullptr, {3, {half, half, k}, {1, half, half}, {1, 1, 1}},
                           sg4::ClusterCallbacks(host), BANDWIDTH, LATENCY, sg4::Link::SharingPolicy::SPLITDUPLEX)
      ->seal();
}

static double peak_memory()
{
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == "VmHWM:") {
      double kilobytes;
      status >> kilobytes;
      return 1024 * kilobytes;
    }
  return 0;
}

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  const std::string shape = argv[1], style = argv[4];
  const int ranks = std::stoi(argv[2]);
  const auto messages = read_table(argv[3]);
  const double jitter = std::stod(argv[5]);
  for (const char* setting :
       {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/weight-S:0"})
    sg4::Engine::set_config(setting);
  // Its lazy updates are faster, and let flows that meet take up to a percent too much for a while.
  if (style == "eager")
    for (const char* setting : {"network/optim:Full", "surf/precision:1e-12"})
      sg4::Engine::set_config(setting);
  if (shape == "crossbar")
    build_crossbar(ranks);
  else if (shape == "fat-tree")
    build_fat_tree(ranks);
  else
    engine.load_platform(shape);
  const auto host = [](int rank) { return sg4::Host::by_name("host:" + std::to_string(rank)); };

  std::vector<std::vector<size_t>> of_rank(ranks);
  for (size_t number = 0; number < messages.size(); number++) {
    of_rank[messages[number].src].push_back(number);
    of_rank[messages[number].dst].push_back(number);
  }
  if (style == "actors") {
    for (int rank = 0; rank < ranks; rank++)
      sg4::Actor::create("rank", host(rank), [&, rank] {
        std::mt19937_64 draws(rank);
        std::exponential_distribution<double> sleep(jitter > 0 ? 1 / jitter : 1);
        static char payload;
        const auto& own = of_rank[rank];
        std::vector<char*> received(own.size());
        for (size_t at = 0; at < own.size();) {
          std::vector<sg4::CommPtr> together;
          const int round = messages[own[at]].round;
          if (jitter > 0)
            sg4::this_actor::sleep_for(sleep(draws));
          for (; at < own.size() && messages[own[at]].round == round; at++) {
            const auto& one = messages[own[at]];
            // The next message of a pair takes the box of the one before, which is empty by then.
            auto* mailbox = sg4::Mailbox::by_name(std::to_string(one.src) + ">" + std::to_string(one.dst));
            if (one.src != rank) {
              together.push_back(mailbox->get_async<char>(&received[at]));
              continue;
            }
            together.push_back(mailbox->put_async(&payload, static_cast<uint64_t>(std::llround(one.nbytes))));
          }
          for (auto& one : together)
            one->wait();
        }
      });
  } else if (style == "eager") {
    static std::vector<sg4::SemaphorePtr> arrived;
    for (size_t number = 0; number < messages.size(); number++)
      arrived.push_back(sg4::Semaphore::create(0));
    for (int rank = 0; rank < ranks; rank++)
      sg4::Actor::create("rank", host(rank), [&, rank] {
        const auto& own = of_rank[rank];
        for (size_t at = 0; at < own.size();) {
          const size_t first = at;
          for (; at < own.size() && messages[own[at]].round == messages[own[first]].round; at++)
            if (messages[own[at]].src == rank)
              sg4::Actor::create("message", host(rank), [&, number = own[at]] {
                const auto& one = messages[number];
                sg4::Comm::sendto(host(one.src), host(one.dst), static_cast<uint64_t>(std::llround(one.nbytes)));
                arrived[number]->release();
                arrived[number]->release();
              });
          for (size_t waits = first; waits < at; waits++)
            arrived[own[waits]]->acquire();
        }
      });
  } else {
    sg4::Actor::create("all", host(0), [&] {
      for (size_t at = 0; at < messages.size();) {
        std::vector<sg4::CommPtr> together;
        const int round = messages[at].round;
        for (; at < messages.size() && messages[at].round == round; at++) {
          const auto& one = messages[at];
          const auto nbytes = static_cast<uint64_t>(std::llround(one.nbytes));
          together.push_back(sg4::Comm::sendto_async(host(one.src), host(one.dst), nbytes));
        }
        for (auto& one : together)
          one->wait();
      }
    });
  }
  const std::clock_t before = std::clock();
  engine.run();
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  std::printf("{\"messages\": %zu, \"finish\": %.17g, \"memory\": %.0f, \"engine\": %.6g}\n", messages.size(),
              sg4::Engine::get_clock(), peak_memory(), seconds);
}
