# Pages of reports in a browser (headless Chromium, one start): nothing on the console, nothing wider than a phone of
# 390 pixels, a screen of 1,200 or a sheet of paper, nor tables than their place, no line breaks between a figure and
# its unit, and the verdict is seen. No transcript; skipped where there is no Chromium; some ten seconds. MF_PAGES=DIR keeps the pages.
. "${0%/*}/../driver.sh"
for browser in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v $browser >/dev/null && break
    browser=""
done
if [ -z "$browser" ]; then
    echo "MF_SKIPPED 1 NO CHROMIUM (chromium, chromium-browser, google-chrome): no page was looked at in a browser"
    exit 0
fi
pages=${MF_PAGES:-$work}
mkdir -p "$pages"
fails=0
fail() {
    echo "$1"
    fails=$((fails + 1))
}

make_page() { # NAME COMMAND ARGS...
    name=$1
    shift
    $golden_limit "$golden_binary" "$@" -o "$pages/$name" >"$work/out" 2>&1
    code=$?
    [ $code = 0 ] || { cat "$work/out"; fail "$name: exit $code"; }
}
job="--cluster h100 --gpus 16 --global-batch 64 --seq 4096"
make_page simulate simulate --model olmoe-1b-7b $job --pp 4 --ep 4 --out "$work/now.json"
make_page plan plan --model olmoe-1b-7b $job --tp 1 --cp 1
make_page tune tune --plan "$work/now.json" --effort 1
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    echo " [2026-01-01 10:00:00] iteration $i/ 100 | consumed samples: $((i * 64)) | elapsed time per iteration (ms):" \
        "900.0 | learning rate: 1E-4 | global batch size: 64 |"
done >"$work/log"
make_page compare compare --plan "$work/now.json" --log "$work/log" --tolerance 90%
make_page capacity capacity --models olmoe-1b-7b --clusters h100,gb200,h20 --sizes 8..32 --global-batch 64 --seq 4096 \
    --pp 1 --cp 1 --tokens 1T --deadline 20d --budget 50k --skew zipf:0.5

# A page as it is seen in a frame of its own, which tells what it measures.
probe='<script>addEventListener("load", () => {
    const root = document.documentElement, lead = document.querySelector(".lead, .tile b");
    const said = JSON.parse(document.getElementById("report").textContent).verdict;
    const seen = lead !== null && lead.offsetHeight > 0 ? lead.innerText : "";
    // figures whose unit stands on the next line
    const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), parted = [];
    for (let node; (node = texts.nextNode());) {
        for (const found of node.data.matchAll(/[\d.,]*\d (%|[mun]?s|h|d|x|[kMGT]?B|[kMG]?(W|Wh|J)|TFLOP\/s|tokens\/s|USD)(?!\w)/g)) {
            const range = document.createRange();
            range.setStart(node, found.index);
            range.setEnd(node, found.index + found[0].length);
            const lines = [...range.getClientRects()].map(r => r.bottom);
            if (Math.max(...lines) > Math.min(...lines) + 5) parted.push(found[0]);
        }
    }
    // nor does a table scroll in its own box, and what stands in a cell ends there
    const boxes = document.querySelectorAll(".wide, td");
    parent.postMessage({frame: name, over: Math.max(...[root, ...boxes].map(b => b.scrollWidth - b.clientWidth)),
        verdict: seen.length > 8 && (said === undefined || seen.toLowerCase() === said.toLowerCase() + "."),
        parted: parted.join(" and "),
        drawn: [...document.querySelectorAll("data")].filter(d => d.offsetHeight > 0).length}, "*");
});</script>'
frame() { # NAME WIDTH PAGE
    echo "<iframe name=\"$1 at $2\" src=\"$3\" width=\"$2\" height=\"900\"></iframe>" >>"$work/frames"
}
: >"$work/frames"
for page in "$pages"/*/report.html; do
    name=$(basename "$(dirname "$page")")
    { cat "$page"; echo "$probe"; } >"$work/$name.html"
    # On a sheet of A4 with margins of a centimetre, as its rules for print say.
    sed 's/@media print{/@media all{/; s/@media screen and (prefers-color-scheme:dark)/@media not all/' \
        "$work/$name.html" >"$work/$name-print.html"
    frame "$name" 390 "$name.html"
    frame "$name" 1200 "$name.html"
    frame "$name on paper" 718 "$name-print.html"
done
# What would be wrong is seen.
sed 's|</main>|<p style="width:1201px">wide</p><p style="width:1px">4.272 s</p></main><script>console.error("planted")</script>|; s|class="lead"|hidden|' \
    "$work/plan.html" >"$work/planted.html"
frame planted 1200 planted.html
sed 's|class="cards"||' "$work/plan.html" >"$work/uncarded.html"
frame "planted table" 390 uncarded.html
{
    cat <<'HEAD'
<!doctype html><meta charset="utf-8"><pre></pre><script>addEventListener("message", m => {
        const d = m.data, faults = [d.over > 0 ? d.over + " pixels too wide" : "", d.verdict ? "" : "no verdict",
            d.parted === "" ? "" : "a line ends within " + d.parted,
            d.drawn > 20 ? "" : "only " + d.drawn + " figures"].filter(f => f !== "");
        document.querySelector("pre").textContent += "frame " + d.frame + ": " + (faults.join(", ") || "ok") + "\n";
    });</script>
HEAD
    cat "$work/frames"
} >"$work/frames.html"
timeout -k 2 60 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --user-data-dir="$work/profile" --window-size=1300,1000 --allow-file-access-from-files --virtual-time-budget=5000 \
    --enable-logging=stderr --v=0 --dump-dom "file://$work/frames.html" >"$work/dom" 2>"$work/log"
code=$?
[ $code = 0 ] || { tail -n 5 "$work/log"; fail "$browser: exit $code (124: it took more than 60 s)"; }

grep '^frame \|<pre>frame ' "$work/dom" | sed 's/.*<pre>//' >"$work/seen"
asked=$(grep -c '<iframe' "$work/frames") told=$(grep -c . "$work/seen")
[ "$asked" = 17 ] && [ "$told" = 17 ] || fail "$told of $asked frames told what they show, expected 17 of 17"
grep -v ': ok$\|^frame planted' "$work/seen" && fail "a page is not as it should be"
grep -q '^frame planted at 1200: [1-9][0-9]* pixels too wide, no verdict, a line ends within 4.272 s$' "$work/seen" ||
    fail "planted faults were not seen: $(grep planted "$work/seen")"
grep -q '^frame planted table at 390: [1-9][0-9]* pixels too wide$' "$work/seen" ||
    fail "a table without cards is wider than a phone, which was not seen: $(grep planted "$work/seen")"
grep 'CONSOLE' "$work/log" | grep -v '"planted"' && fail "a page writes to the console"
grep -q 'CONSOLE.*"planted"' "$work/log" || fail "the console was not read"
[ $fails = 0 ]
