package top

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// Actions are what the keys ask for. Each may take its time, and is given up when its context ends.
type Actions interface {
	// Why says why a node can or cannot be removed, as slipway why does.
	Why(ctx context.Context, node string) (string, error)
	// Plan says which nodes could be removed together, as slipway plan does.
	Plan(ctx context.Context) (string, error)
	// CallOff deletes the NodeRetirement with this UID, and no other of the name.
	CallOff(ctx context.Context, name string, uid types.UID) error
}

// Options say where a UI is shown.
type Options struct {
	// Title says which cluster it is.
	Title string
	// ASCII draws without block characters; see [Screen].
	ASCII bool
	// Now is the time before the first second has gone by.
	Now time.Time
}

// UI is the view on a terminal: a [tea.Model]. A State reaches it as a message.
type UI struct {
	ctx     context.Context //nolint:containedctx // bubbletea's Update has none; it is the program's own
	actions Actions
	o       Options

	state         State
	known         bool // a State has come
	now           time.Time
	width, height int
	selected      string
	said          string // how the last thing that was asked for ended

	page    *page
	confirm *Retirement // a person is asked whether to call it off
}

// page is an answer that takes the place of the nodes.
type page struct {
	title string
	text  string // empty until it is there
	from  int    // the first line shown
	stop  context.CancelFunc
}

// NewUI is a view without a State. What its keys begin ends with the context.
func NewUI(ctx context.Context, actions Actions, o Options) *UI {
	return &UI{ctx: ctx, actions: actions, o: o, now: o.Now, width: 80, height: 24}
}

type (
	tick     time.Time
	answered struct {
		page *page
		text string
	}
	said string
)

// Init begins to count the seconds.
func (u *UI) Init() tea.Cmd { return second() }

func second() tea.Cmd { return tea.Every(time.Second, func(t time.Time) tea.Msg { return tick(t) }) }

// Update takes a State, a key, a new size of the terminal, or an answer.
func (u *UI) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case State:
		u.take(msg)
	case tick:
		u.now = time.Time(msg)
		return u, second()
	case tea.WindowSizeMsg:
		u.width, u.height = msg.Width, msg.Height
	case answered:
		if msg.page == u.page && u.page != nil { // not one that was left meanwhile
			u.page.text = msg.text
		}
	case said:
		u.said = string(msg)
	case tea.KeyPressMsg:
		return u, u.key(msg.String())
	}
	return u, nil
}

// take shows a State. The cursor stays on its node; when that is gone it goes to the one that has come into its place.
func (u *UI) take(s State) {
	was := u.names()
	u.state, u.known = s, true
	is := u.names()
	if len(is) == 0 || slices.Contains(is, u.selected) {
		return
	}
	at := max(slices.Index(was, u.selected), 0)
	u.selected = is[min(at, len(is)-1)]
}

// names are those of all lines with a node, in the order in which they are shown.
func (u *UI) names() (all []string) {
	for _, g := range u.state.Groups {
		for _, n := range g.Nodes {
			all = append(all, n.Name)
		}
	}
	return all
}

// current is the node under the cursor, or nil.
func (u *UI) current() *Node {
	for _, g := range u.state.Groups {
		for i := range g.Nodes {
			if g.Nodes[i].Name == u.selected {
				return &g.Nodes[i]
			}
		}
	}
	return nil
}

func (u *UI) key(key string) tea.Cmd {
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case u.confirm != nil:
		return u.answer(key)
	case u.page != nil:
		u.turn(key)
		return nil
	}
	u.said = ""
	switch key {
	case "q":
		return tea.Quit
	case "w", "enter":
		return u.why()
	case "p":
		return u.open("plan: which nodes could be removed together", u.actions.Plan)
	case "c":
		u.askToCallOff()
	default:
		u.move(key)
	}
	return nil
}

// steps are how far a key moves; ends are more than any screen or list has.
func steps(key string, page int) int {
	const end = 1 << 30
	switch key {
	case "up", "k":
		return -1
	case "down", "j":
		return 1
	case "pgup", "b":
		return -page
	case "pgdown", "space":
		return page
	case "home", "g":
		return -end
	case "end", "G":
		return end
	}
	return 0
}

func (u *UI) move(key string) {
	all := u.names()
	by := steps(key, max(u.height/2, 1))
	if len(all) == 0 || by == 0 {
		return
	}
	u.selected = all[min(max(slices.Index(all, u.selected)+by, 0), len(all)-1)]
}

// turn moves in a page, or leaves it.
func (u *UI) turn(key string) {
	switch key {
	case "q", "esc", "enter", "backspace":
		u.page.stop()
		u.page = nil
		return
	}
	lines := len(u.wrapped(u.page.text))
	u.page.from = min(max(u.page.from+steps(key, u.pageRoom()), 0), max(lines-u.pageRoom(), 0))
}

// open asks for an answer and shows it on a page when it comes.
func (u *UI) open(title string, ask func(context.Context) (string, error)) tea.Cmd {
	ctx, stop := context.WithCancel(u.ctx)
	p := &page{title: title, stop: stop}
	u.page = p
	return func() tea.Msg {
		defer stop()
		text, err := ask(ctx)
		if err != nil {
			text = strings.TrimLeft(text+"\nThis cannot be told: "+err.Error(), "\n")
		}
		return answered{p, text}
	}
}

// why says what is known of the node here already, and then what placement says.
func (u *UI) why() tea.Cmd {
	n := u.current()
	if n == nil {
		u.said = "there is no node to ask about"
		return nil
	}
	name, here, there := n.Name, u.facts(n), n.There
	return u.open("why "+name, func(ctx context.Context) (string, error) {
		if !there {
			return here, nil
		}
		text, err := u.actions.Why(ctx, name)
		return here + "\n" + text, err
	})
}

// facts are what the watched objects say of a node.
func (u *UI) facts(n *Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", n.Name, n.Doing.Phrase(u.now))
	for _, notice := range u.state.Notices {
		if notice.Node == n.Name {
			fmt.Fprintf(&b, "notice %s (%s %s): %s %s\n", notice.Type, notice.Source, notice.ID, notice.Countdown(u.now), notice.Description)
		}
	}
	if rt := n.Retirement; rt != nil {
		fmt.Fprintf(&b, "NodeRetirement %s (%s, asked for by %s) is %s: %s\n", rt.Name, rt.Reason, orSomebody(rt.By), rt.Phase, rt.Message)
		for _, r := range rt.Reasons {
			fmt.Fprintf(&b, "  %s: %s\n", strings.TrimSpace(r.Code+" "+r.Object), r.Message)
		}
	}
	return b.String()
}

func orSomebody(by string) string {
	if by == "" {
		return "somebody"
	}
	return by
}

func (u *UI) askToCallOff() {
	n := u.current()
	switch {
	case n == nil:
		u.said = "there is no node to call anything off for"
	case n.Retirement == nil:
		u.said = n.Name + " is not being retired: there is nothing to call off"
	case !n.Retirement.MayBeCalledOff():
		u.said = fmt.Sprintf("%s cannot be called off: it is %s, and there is no way back", n.Retirement.Name, n.Retirement.Phase)
	default:
		u.confirm = n.Retirement
	}
}

// answer takes a yes, and any other key for a no.
func (u *UI) answer(key string) tea.Cmd {
	rt := u.confirm
	u.confirm = nil
	if key != "y" && key != "Y" {
		u.said = "not called off"
		return nil
	}
	u.said = "calling off " + rt.Name + " ..."
	return func() tea.Msg {
		if err := u.actions.CallOff(u.ctx, rt.Name, rt.UID); err != nil {
			return said(fmt.Sprintf("%s is not called off: %v", rt.Name, err))
		}
		return said(rt.Name + " is called off: the node will be given back")
	}
}

// View draws the screen.
func (u *UI) View() tea.View {
	v := tea.NewView(u.Screen())
	v.AltScreen = true
	return v
}

// Screen is what there is to see, as text.
func (u *UI) Screen() string {
	on := Screen{
		Width: u.width, Height: u.height, ASCII: u.o.ASCII, Now: u.now, Title: u.o.Title, Selected: u.selected, Footer: u.footer(),
	}
	switch {
	case u.page != nil:
		return u.pageOn(on)
	case !u.known:
		return on.fit("slipway top  " + u.o.Title + "  reading the cluster ...")
	}
	return Render(u.state, on)
}

const keys = "up/down select   w why   p plan   c call off   q quit"

func (u *UI) footer() []string {
	switch {
	case u.confirm != nil:
		return u.question()
	case u.said != "":
		return append(u.wrapped(u.said), keys)
	}
	return []string{keys}
}

func (u *UI) question() []string {
	rt := u.confirm
	text := fmt.Sprintf("Call off %s (%s, %s)? Its node is given back.", rt.Name, rt.Reason, rt.Phase)
	if rt.Reason == v1alpha1.Idle && rt.By == nodegroup.RequestedBy {
		text += " The idle rule may ask for it again."
	}
	return append(u.wrapped(text), "y yes   any other key no")
}

// pageRoom is how many lines of a page there is room for, between its title and the keys.
func (u *UI) pageRoom() int { return max(u.height-4, 1) }

func (u *UI) pageOn(on Screen) string {
	lines := []string{bold.Render(on.fit(u.page.title)), ""}
	text := u.wrapped(u.page.text)
	if u.page.text == "" {
		text = []string{"reading the cluster ..."}
	}
	from := min(u.page.from, max(len(text)-u.pageRoom(), 0))
	shown := text[from:min(from+u.pageRoom(), len(text))]
	lines = append(lines, shown...)
	for len(lines) < u.height-1 {
		lines = append(lines, "")
	}
	foot := "esc back"
	if len(shown) < len(text) {
		foot = fmt.Sprintf("esc back   up/down scroll   lines %d to %d of %d", from+1, from+len(shown), len(text))
	}
	lines = append(lines, on.fit(foot))
	return strings.Join(lines[:min(len(lines), max(u.height, 1))], "\n")
}

// wrapped is a text in lines that fit on the screen. What goes on in the next line is indented.
func (u *UI) wrapped(text string) (lines []string) {
	const indent = "    "
	width := max(u.width, len(indent)+1)
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		line = strings.TrimRight(oneLine(line), " ")
		first, rest, more := strings.Cut(ansi.Wrap(line, width, ""), "\n")
		lines = append(lines, first)
		if !more {
			continue
		}
		rest = ansi.Wrap(strings.ReplaceAll(rest, "\n", " "), width-len(indent), "")
		for _, part := range strings.Split(rest, "\n") {
			lines = append(lines, indent+part)
		}
	}
	return lines
}
