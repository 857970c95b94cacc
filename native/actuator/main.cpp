// The program: the socket to the daemon is standard input. It says nothing to anybody else.
#include <sched.h>
#include <unistd.h>

#include <csignal>

#include "actuator/actuator.hpp"

int main() {
    using runlist::actuator::Actuator;
    using runlist::actuator::Waiting;
    // What is for the daemon alone: the terminal's, and those that end a service.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
    Actuator actuator(STDIN_FILENO);
    if (const int error = Waiting::unable(); error != 0) {
        actuator.tell_unable(error);
        return 0;
    }
    // It sleeps, but for a moment a request; that moment is not to wait for a turn on a busy machine. Takes root.
    const sched_param first{.sched_priority = 1};
    ::sched_setscheduler(0, SCHED_FIFO, &first);
    actuator.serve();
    return 0;
}
