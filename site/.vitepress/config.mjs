// The web site of Slipway's documentation. CONTRIBUTING.md describes its environment variables SITE_BASE and SITE_EDIT.
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { readNavigation, sitePath, slugify, stageContent, toSiteLink } from './content.mjs'

const site = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..')
const root = path.resolve(site, '..')
const staged = path.join(site, 'pages')
const pages = stageContent(root, staged)

const icon = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0b5a8f"/>' +
  '<path d="M5 25 27 14v11z" fill="#fff"/><circle cx="11" cy="14" r="4" fill="#8fd0ff"/></svg>'
const iconURL = 'data:image/svg+xml,' + encodeURIComponent(icon)

// adaptMarkdown renders the repository's Markdown as code hosts do.
function adaptMarkdown(md) {
  md.core.ruler.push('repository', (state) => {
    // The path in the repository, also while the search index is built, which knows no realPath.
    const page = path.relative(staged, state.env.realPath ?? state.env.path ?? staged)
    // Pages that show files have links of the site already.
    const isPage = pages.has(page)
    const visit = (tokens) => {
      for (const [i, token] of tokens.entries()) {
        if (token.type === 'link_open' && isPage) {
          token.attrSet('href', toSiteLink(root, pages, page, token.attrGet('href')))
        }
        if (token.type === 'html_block') {
          token.content = splitPictures(token.content)
        }
        // A cell without text is no heading for screen readers.
        if (token.type === 'th_open' && tokens[i + 1].content === '') {
          token.tag = tokens[i + 2].tag = 'td'
        }
        // Indented code looks and scrolls like other code.
        if (token.type === 'code_block') {
          Object.assign(token, { type: 'fence', info: 'text' })
        }
        visit(token.children ?? [])
      }
    }
    visit(state.tokens)
  })
  // A page is a template for Vue, in which {{ }} has a meaning.
  for (const kind of ['text', 'code_inline']) {
    const rule = md.renderer.rules[kind]
    md.renderer.rules[kind] = (...args) => rule(...args).replaceAll('{{', '&#123;&#123;')
  }
  // The word after the language names the file; the others are for tests.
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (...args) => {
    const token = args[0][args[1]]
    const [language = '', ...words] = token.info.trim().split(/\s+/)
    const file = words.find((word) => word.startsWith('file='))
    token.info = language || 'text'
    // The copy button removes prompts from blocks of this class.
    const block = fence(...args).replace('class="language-console', '$& language-shell')
    return file ? `<div class="file-name">${md.utils.escapeHtml(file.slice(5))}</div>${block}` : block
  }
}

// copyCommandsOnly hides the output in a block of the language console from the copy button. A command begins with "$ " and
// continues after a backslash, or on lines with "> ".
const copyCommandsOnly = {
  name: 'copy-commands-only',
  line(node, number) {
    if (this.options.lang === 'console') {
      const lines = this.source.split('\n')
      const isCommand = (i) => lines[i].trimStart().startsWith('$ ') ||
        (i > 0 && (lines[i].startsWith('> ') || lines[i - 1].endsWith('\\')) && isCommand(i - 1))
      if (!isCommand(number - 1)) {
        this.addClassToHast(node, 'vp-copy-ignore')
      }
    }
  },
}

// splitPictures replaces a picture for a light and a dark system by two images, because readers switch on the page too.
function splitPictures(html) {
  return html.replace(/<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img ([^>]*?)src="([^"]+)"([^>]*)>\s*<\/picture>/g,
    (_, dark, before, light, after) => [['light-only', light], ['dark-only', dark]]
      .map(([name, src]) => `<img class="${name}" ${before}src="./${src}"${after}>`).join(''))
}

// Faults of the default theme that axe-core reports: no main landmark, buttons and links within buttons or options, and names
// that differ from the visible text.
const patches = {
  'VPHome.vue': [[/<div\s+class="VPHome"([^]*)<\/div>\s*<\/template>/, '<main class="VPHome"$1</main></template>']],
  'NotFound.vue': [[/<div class="NotFound">([^]*)<\/div>\s*<\/template>/, '<main class="NotFound">$1</main></template>']],
  'VPSidebarItem.vue': [[/(class="caret"\s+)role="button"\s+aria-label="toggle section"([^>]*?)tabindex="0"/, '$1aria-hidden="true"$2']],
  'VPNavBarSearchButton.vue': [[/:aria-label="(.*)"/, ':title="$1"'], [/<span class="DocSearch-Button-Keys"/, '$& aria-hidden="true"']],
  'VPLocalSearchBox.vue': [
    [/role="button"\s+:aria-owns=.*\s+aria-expanded="true"\s+aria-haspopup="listbox"/, 'role="dialog" aria-modal="true"'],
    [/ref="searchInput"/, '$& role="combobox" aria-expanded="true"'],
    [/:id="'localsearch-item-' \+ index"\s+:aria-selected=.*\s+role="option"/, 'role="presentation"'],
    [/<kbd :aria-label/g, '<kbd role="img" :aria-label'],
    [/:aria-label="\[\.\.\.p\.titles, p\.title\].*"/,
      'role="option" tabindex="-1" :id="\'localsearch-item-\' + index" :aria-selected="selectedIndex === index"'],
  ],
}

function patchTheme() {
  return {
    name: 'patch-theme',
    enforce: 'pre',
    transform(code, id) {
      for (const [from, to] of (id.includes('/theme-default/') && patches[path.basename(id)]) || []) {
        const patched = code.replace(from, to)
        if (patched === code) {
          throw new Error(`${id} has changed: see patches in site/.vitepress/config.mjs`)
        }
        code = patched
      }
      return code
    },
  }
}

export default defineConfig({
  title: 'Slipway',
  description: 'Slipway takes Kubernetes nodes into and out of service without dropping work.',
  base: process.env.SITE_BASE || '/',
  srcDir: staged,
  rewrites: sitePath,
  cacheDir: path.join(site, 'node_modules', '.cache'),
  outDir: path.join(root, 'dist', 'site'),
  head: [['link', { rel: 'icon', href: iconURL }]],
  markdown: {
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    anchor: { slugify },
    attrs: { disable: true },
    emoji: { enabled: [] },
    codeTransformers: [copyCommandsOnly],
    config: adaptMarkdown,
  },
  vite: {
    plugins: [patchTheme()],
    build: { chunkSizeWarningLimit: 2000 }, // the search index, which only a search loads, is the largest chunk
  },
  themeConfig: {
    logo: iconURL,
    nav: [
      { text: 'Documentation', link: '/docs/', activeMatch: '^/docs/' },
      { text: 'Install', link: '/docs/install' },
      { text: 'Questions', link: '/docs/faq' },
    ],
    sidebar: readNavigation(root, pages),
    outline: { level: [2, 3] },
    search: { provider: 'local' },
    notFound: { title: 'Page not found', quote: 'The address is wrong, or the page has moved. Search, or begin at the first page.', linkText: 'First page', linkLabel: 'First page' },
    ...(process.env.SITE_EDIT && { editLink: { pattern: process.env.SITE_EDIT + '/:path' } }),
  },
})
