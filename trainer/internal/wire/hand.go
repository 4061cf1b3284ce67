package wire

import "github.com/penstock-data/penstock/internal/fault"

// HandVersion of what a hand and the controller say to each other; both must have the same.
const HandVersion = 3

// ToHand is a line of the controller to the hand of a node: a request, or one of the fields that say that they are none. Requests are answered once each, in any order.
type ToHand struct {
	ID      int64        `json:"id,omitempty"` // of a request, from 1
	Welcome *HandWelcome `json:"welcome,omitempty"`
	Sweep   *HandSweep   `json:"sweep,omitempty"`
	Lease   *HandLease   `json:"lease,omitempty"`
	Launch  *HandLaunch  `json:"launch,omitempty"`
	Signal  *HandSignal  `json:"signal,omitempty"`
	Stacks  *HandStacks  `json:"stacks,omitempty"`
	Stop    *HandStop    `json:"stop,omitempty"`
	Usage   *HandUsage   `json:"usage,omitempty"`
	Take    *HandTake    `json:"take,omitempty"`
	Upload  *HandUpload  `json:"upload,omitempty"`
	Settle  *HandSettle  `json:"settle,omitempty"`
	Fetch   *HandFetch   `json:"fetch,omitempty"`
	Want    *HandWant    `json:"want,omitempty"`   // no request: see Ear.Want
	Cancel  *HandCancel  `json:"cancel,omitempty"` // no request: that one is given up, and answered all the same
	Beat    *Beat        `json:"beat,omitempty"`   // no request: the controller is there
	Over    *HandOver    `json:"over,omitempty"`   // no request: the last line
}

// FromHand is a line of a hand: hello first, then answers, and what happens.
type FromHand struct {
	Hello   *HandHello   `json:"hello,omitempty"`
	Answer  *HandAnswer  `json:"answer,omitempty"`
	Exit    *HandExit    `json:"exit,omitempty"`
	Waits   *HandWaits   `json:"waits,omitempty"`
	Devices *HandDevices `json:"devices,omitempty"`
	Notice  *HandNotice  `json:"notice,omitempty"`
	Stopped *HandStopped `json:"stopped,omitempty"`
	Beat    *Beat        `json:"beat,omitempty"`
}

// Beat is sent by both sides each few seconds, so that a silent one is known to be gone.
type Beat struct{}

// HandHello says what a hand was configured with: all members of a gang have the same.
type HandHello struct {
	Version int         `json:"version"`
	Host    string      `json:"host"` // for people
	Config  []HandField `json:"config"`
}

// HandField is a part of a configuration, as text.
type HandField struct {
	Name string `json:"name"` // as users know it
	Text string `json:"text"`
}

// HandWelcome is what the run is. The answer has Logs and Sockets; its error says that the hand does not reach the run.
type HandWelcome struct {
	Run string `json:"run"`
	ID  string `json:"id"` // of its record
}

// HandSweep ends what an earlier controller of the run has left on this machine.
type HandSweep struct{}

// HandLease leases devices to the workers of the node, and waits until they are free. The answer has Devices.
type HandLease struct{}

// HandLaunch starts workers of an attempt, all or none.
type HandLaunch struct {
	Attempt int          `json:"attempt"`
	Workers []HandWorker `json:"workers"`
}

// HandWorker is a worker to start: the program and the base of its environment are the hand's own.
type HandWorker struct {
	Rank int      `json:"rank"`
	Env  []string `json:"env"` // of this rank: NAME=value
}

// HandSignal sends a signal to a worker, or to all of the attempt's (-1).
type HandSignal struct {
	Attempt int `json:"attempt"`
	Rank    int `json:"rank"`
	Signal  int `json:"signal"`
}

// HandStacks asks what the threads of a worker do. The answer has Stacks.
type HandStacks struct {
	Attempt int `json:"attempt"`
	Rank    int `json:"rank"`
}

// HandStop ends the workers of an attempt. It is answered when nothing is left of them.
type HandStop struct {
	Attempt int     `json:"attempt"`
	Grace   float64 `json:"grace"` // seconds
}

// HandUsage asks what workers use. The answer has Usage.
type HandUsage struct {
	Attempt int `json:"attempt"`
}

// HandUse is what a worker uses.
type HandUse struct {
	Rank      int     `json:"rank"`
	PID       int     `json:"pid"`
	Processes int     `json:"processes"`
	Memory    int64   `json:"memory"`
	CPU       float64 `json:"cpu"` // seconds
}

// HandPart is the folder of a rank.
type HandPart struct {
	Rank int    `json:"rank"`
	Dir  string `json:"dir"`
}

// HandTake moves the folders of a report away: they are the hand's until it is settled.
type HandTake struct {
	Report int64      `json:"report"`
	Parts  []HandPart `json:"parts"`
}

// HandUpload uploads folders, or those that were taken, into a try. The answer has Files, in several lines where there are many (More).
type HandUpload struct {
	Report   int64      `json:"report"`
	Try      string     `json:"try"`
	Parts    []HandPart `json:"parts"`
	Parallel int        `json:"parallel"`
}

// HandSettle ends what Take began: what was taken is removed, or kept where its report is in no checkpoint. The answer has Dir then.
type HandSettle struct {
	Report int64 `json:"report"`
	Keep   bool  `json:"keep,omitempty"`
}

// HandFetch makes the files of a checkpoint a folder of this machine. The answer has Dir.
type HandFetch struct {
	From   string `json:"from,omitempty"` // another run's, as the configuration names it; "": this run's
	Number int    `json:"number"`
}

// HandWant says which report of each worker is waited for.
type HandWant struct {
	Report int64 `json:"report"`
}

// HandCancel gives a request up.
type HandCancel struct {
	ID int64 `json:"id"`
}

// HandOver is how the run ended, for the result of the hand.
type HandOver struct {
	State      string  `json:"state,omitempty"` // "": nothing was started
	Error      *Error  `json:"error,omitempty"`
	Run        string  `json:"run,omitempty"`
	Storage    string  `json:"storage,omitempty"`
	Reports    int64   `json:"reports,omitempty"`
	Metrics    Metrics `json:"metrics,omitempty"`
	Attempts   int     `json:"attempts,omitempty"`
	Attempt    int     `json:"attempt,omitempty"`
	Checkpoint int     `json:"checkpoint,omitempty"`
}

// HandAnswer answers a request.
type HandAnswer struct {
	ID      int64      `json:"id"`
	Error   *Error     `json:"error,omitempty"`
	More    bool       `json:"more,omitempty"`    // other lines follow, with more Files
	Logs    string     `json:"logs,omitempty"`    // folder of logs
	Sockets string     `json:"sockets,omitempty"` // folder of sockets
	Devices [][]string `json:"devices,omitempty"`
	Stacks  string     `json:"stacks,omitempty"`
	Usage   []HandUse  `json:"usage,omitempty"`
	Files   []HandFile `json:"files,omitempty"`
	Dir     string     `json:"dir,omitempty"`
}

// HandFile is a file that was uploaded: see store.File.
type HandFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	Sum  string `json:"sum"`
	Rank int    `json:"rank"`
}

// HandExit is the end of a worker: see launch.Exit.
type HandExit struct {
	Attempt int      `json:"attempt"`
	Rank    int      `json:"rank"`
	Name    string   `json:"name"`
	PID     int      `json:"pid"`
	Code    int      `json:"code"`
	Signal  int      `json:"signal,omitempty"`
	Memory  bool     `json:"memory,omitempty"`
	Ours    bool     `json:"ours,omitempty"`
	Tail    []string `json:"tail,omitempty"`
	Detail  string   `json:"detail,omitempty"`
	Error   *Error   `json:"error,omitempty"`
}

// HandWaits says what a lease waits for.
type HandWaits struct {
	Reason string `json:"reason"`
}

// HandDevices is what the devices of the node's workers do, by metric.
type HandDevices struct {
	Metrics Metrics `json:"metrics"`
}

// HandNotice: the machine will be taken away, or the run is to stop for another reason.
type HandNotice struct {
	Reason string `json:"reason"`
}

// HandStopped: the caller of this member gave up.
type HandStopped struct {
	Error *Error `json:"error"`
}

// FromHand reads what a hand says.
func (r *Reader) FromHand() (m FromHand, err error) {
	err = r.read(&m, func() int {
		return count(m.Hello != nil, m.Answer != nil, m.Exit != nil, m.Waits != nil, m.Devices != nil, m.Notice != nil, m.Stopped != nil, m.Beat != nil)
	})
	return m, err
}

// ToHand reads what the controller says to a hand.
func (r *Reader) ToHand() (m ToHand, err error) {
	err = r.read(&m, func() int {
		return count(m.Welcome != nil, m.Sweep != nil, m.Lease != nil, m.Launch != nil, m.Signal != nil, m.Stacks != nil, m.Stop != nil, m.Usage != nil, m.Take != nil, m.Upload != nil,
			m.Settle != nil, m.Fetch != nil, m.Want != nil, m.Cancel != nil, m.Beat != nil, m.Over != nil)
	})
	if err == nil && (m.ID < 1) != (m.Want != nil || m.Cancel != nil || m.Beat != nil || m.Over != nil) {
		err = fault.New(fault.Unsupported, "a request with number %d; use one release on both sides", m.ID)
	}
	return m, err
}
